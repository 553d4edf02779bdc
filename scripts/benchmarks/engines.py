"""A round of 100 clients over Flower's simulation: two nodes that host cohorts, against one client a node."""

import atexit
import contextlib
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load_file

from app.algorithms.base import average
from app.client.local_training import Call, Participation
from app.client.node import Node
from app.common.errors import FedgeoError
from app.common.seeds import one_thread
from app.data.federated_dataset import federated_dataset
from app.launch.job import Job, prepare, run_in_process, run_on_flower
from app.launch.simulation import MARK, SimulationSuperLink, simulated
from app.launch.superlink import ROOT
from app.models.base import Weights
from scripts.benchmarks.pair import Pair

CLIENTS, DIMENSION, CLASSES, BATCH, EPOCHS, ROUNDS = 100, 512, 10, 64, 10, 3
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-5
TRAINED, TESTED = CLIENTS * 500, 1000
WORKERS = os.cpu_count() or 1

PYPROJECT = """
[project]
name = "stock"
version = "1.0.0"
license = { file = "LICENSE" }
requires-python = ">=3.11"
dependencies = ["flwr>=1.42"]
[tool.flwr.app]
publisher = "fedgeo"
fab-format-version = 1
fab-include = ["LICENSE", "*.py"]
flwr-version-target = "1.42.0"
[tool.flwr.app.components]
serverapp = "stock_server:app"
clientapp = "stock_client:app"
[tool.flwr.app.config]
data = ""
out = ""
"""

CLIENT = f"""
import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
held = {{}}


def samples(context):
    if not held:
        torch.set_num_threads(1)
        whole = np.load(context.run_config["data"], mmap_mode=None)
        held.update(x=whole["x"], y=whole["y"], clients=whole["clients"])
    rows = held["clients"] == context.node_config["partition-id"]
    return torch.from_numpy(held["x"][rows]), torch.from_numpy(held["y"][rows])


@app.train()
def train(message, context):
    client = context.node_config["partition-id"]
    if client not in held:
        held[client] = samples(context)
    x, y = held[client]
    layer = torch.nn.Linear({DIMENSION}, {CLASSES})
    layer.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(layer.parameters(), lr={LR}, momentum={MOMENTUM}, weight_decay={DECAY})
    total, steps = 0.0, 0
    for _ in range({EPOCHS}):
        order = torch.randperm(len(y))
        for start in range(0, len(y), {BATCH}):
            rows = order[start : start + {BATCH}]
            optimiser.zero_grad()
            loss = F.cross_entropy(layer(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            total, steps = total + loss.item(), steps + 1
    metrics = MetricRecord({{"num-examples": len(y), "train_loss": total / steps}})
    return Message(RecordDict({{"arrays": ArrayRecord(layer.state_dict()), "metrics": metrics}}), reply_to=message)
"""

SERVER = f"""
import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {CLIENTS}:
        time.sleep(0.1)
    layer = torch.nn.Linear({DIMENSION}, {CLASSES})
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    stamps = []
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes={CLIENTS}, min_available_nodes={CLIENTS})
    result = strategy.start(
        grid, ArrayRecord(layer.state_dict()), num_rounds={ROUNDS},
        evaluate_fn=lambda number, arrays: stamps.append(time.monotonic()),
    )
    out = Path(context.run_config["out"])
    weights = {{"linear." + k: v for k, v in result.arrays.to_torch_state_dict().items()}}
    save_file(weights, out / "model.safetensors")
    (out / "part").write_text(json.dumps([b - a for a, b in zip(stamps, stamps[1:])]))
    (out / "part").rename(out / "rounds.json")
"""


class StockSuperLink(SimulationSuperLink):
    """The same private SuperLink with an app that is Flower's own FedAvg, one client a node."""

    def _copy_app(self) -> None:
        target = self.folder / "fedgeo"
        target.mkdir()
        files = {"pyproject.toml": PYPROJECT, "stock_client.py": CLIENT, "stock_server.py": SERVER}
        files["LICENSE"] = (ROOT / "LICENSE").read_text()  # Flower wants one of every app
        for name, text in files.items():
            (target / name).write_text(text)

    def run(self, data: Path, out: Path) -> Path:
        """One run; ``out`` holds its model and its rounds' seconds afterwards."""
        out.mkdir()
        settings = out / "run.toml"
        settings.write_text(f"data = {json.dumps(str(data))}\nout = {json.dumps(str(out))}\n")
        app = str(self.folder / "fedgeo")
        answer = self.flwr("run", app, self.name, "-c", str(settings), *simulated(CLIENTS))
        while not (out / "rounds.json").exists():
            time.sleep(1)
            status, details = self.status(str(answer["run-id"]))
            if status.startswith("finished") and not (out / "rounds.json").exists():
                raise FedgeoError(f"the reference ended as {status}: {details or self.log_tail()}")
        return out


class Sampled:
    """Peak of the memory of all processes that carry a mark, in MB, shared pages counted once; read every second.

    own: this process counts too.
    """

    def __init__(self, own: bool = False) -> None:
        self.peak = 0.0
        self.own = own
        self._done = threading.Event()

    def during(self, call: Callable[[], Path], mark: str) -> Path:
        self._done.clear()
        watcher = threading.Thread(target=self._watch, args=(mark,), daemon=True)
        watcher.start()
        try:
            return call()
        finally:
            self._done.set()
            watcher.join()

    def _watch(self, mark: str) -> None:
        while not self._done.wait(1):
            total = 0
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    if process.environ().get(MARK) == mark or (self.own and process.pid == os.getpid()):
                        total += process.memory_full_info().pss
            self.peak = max(self.peak, total / 1e6)


WHAT = f"{CLIENTS} clients x 500 x {DIMENSION}, {CLASSES} classes, batch {BATCH}, {EPOCHS} epochs, SGD momentum"


def engines() -> list[Pair]:
    """The wall clock of a round after the first over Flower, from the same samples and start."""
    made = _federation()
    return [
        Pair(
            f"{WHAT}; seconds a round through flwr run on {WORKERS} cores; against stock Flower with one client a node",
            lambda: lambda: made.mean(made.over_flower()),
            lambda: lambda: made.mean(made.stock()),
            made.agree_with_stock,
            pairs=5,
            warm_up=0,
            memory=lambda: (made.ours.peak, made.theirs.peak),
        )
    ]


def overhead() -> list[Pair]:
    """The wall clock of a round after the first in process, against its computation alone."""
    made = _federation(rounds=10)
    return [
        Pair(
            f"{WHAT}; seconds a round in process; against the computation alone, without messages and files",
            lambda: lambda: made.mean(made.in_process()),
            lambda: made.computation,
            made.agree_with_computation,
            pairs=5,
            warm_up=0,
        )
    ]


def _federation(rounds: int = ROUNDS) -> "Federation":
    folder = Path(tempfile.mkdtemp(prefix="fedgeo-benchmark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Federation(folder, rounds)


class Federation:
    """The clients' samples, and the ways to train on them."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.numbers = itertools.count()
        self.ours, self.theirs = Sampled(), Sampled()
        self.links: dict[type[SimulationSuperLink], SimulationSuperLink] = {}
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((CLASSES, DIMENSION)) / 4
        y = rng.integers(0, CLASSES, TRAINED + TESTED)
        x = (centres[y] + rng.standard_normal((len(y), DIMENSION))).astype(np.float32)
        self.features, self.samples = folder / "features.npz", folder / "stock.npz"
        self.test = x[TRAINED:]
        np.savez(self.features, train_X=x[:TRAINED], train_y=y[:TRAINED], test_X=x[TRAINED:], test_y=y[TRAINED:])
        clients = rng.permutation(np.arange(TRAINED) % CLIENTS)
        np.savez(self.samples, x=x[:TRAINED], y=y[:TRAINED], clients=clients)

    def job(self) -> Job:
        words = ["data=features", f"data.path={self.features}", "data.val_fraction=0.0", "encoder.normalise=none"]
        words += ["augmentation=none", "federation.partition=iid", f"federation.clients={CLIENTS}"]
        words += [f"federation.rounds={self.rounds}", f"training.epochs={EPOCHS}", f"training.batch_size={BATCH}"]
        words += [f"training.lr={LR}", f"training.momentum={MOMENTUM}", f"training.weight_decay={DECAY}"]
        return prepare(words, run_dir=self.folder / f"run-{next(self.numbers)}")

    def link(self, kind: type[SimulationSuperLink]) -> SimulationSuperLink:
        """The side's SuperLink, started once and stopped at the end."""
        if kind not in self.links:
            self.links[kind] = kind()
            atexit.register(self.links[kind].stop)
            self.links[kind].__enter__()
        return self.links[kind]

    def over_flower(self) -> Path:
        job, link = self.job(), self.link(SimulationSuperLink)

        def call() -> Path:
            run_on_flower(job, link, lambda row: None, lambda line: None)
            return job.run_dir

        return self.ours.during(call, link.mark)

    def stock(self) -> Path:
        link = self.link(StockSuperLink)
        assert isinstance(link, StockSuperLink)
        out = self.folder / f"run-{next(self.numbers)}"
        return self.theirs.during(lambda: link.run(self.samples, out), link.mark)

    def in_process(self) -> Path:
        job = self.job()
        run_in_process(job, lambda row: None)
        return job.run_dir

    def mean(self, out: Path) -> float:
        """Mean seconds of the rounds after the first."""
        if (out / "rounds.json").exists():
            rounds = json.loads((out / "rounds.json").read_text())
        else:
            rounds = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        return float(np.mean(rounds[1:]))

    def computation(self) -> float:
        """Mean seconds of a round that trains and averages, and no more."""
        return self.compute()[1]

    def compute(self) -> tuple[Weights, float]:
        job = self.job()
        here = Node(job.config, federated_dataset(job.config), list(range(CLIENTS)), job.run_dir)
        weights, taken = here.initial(), []
        with one_thread():
            for number in range(1, self.rounds + 1):
                start = time.perf_counter()
                call = Call(number, "", LR, weights, {}, steps=lambda client: None)
                participation = Participation(here, here.clients, call)
                results = [participation.result(client) for client in here.clients]
                weights = average((r.weights for r in results), [here.examples(client, "") for client in here.clients])
                taken.append(time.perf_counter() - start)
        return weights, float(np.mean(taken[1:]))

    def agree_with_stock(self) -> None:
        """Shares and order of the samples differ: the same test samples must be told alike, but for one in fifty."""
        paths = self.over_flower() / "model-final.safetensors", self.stock() / "model.safetensors"
        models = [load_file(path) for path in paths]
        told = [(self.test @ m["linear.weight"].T + m["linear.bias"]).argmax(1) for m in models]
        assert np.mean(told[0] == told[1]) > 0.98, f"only {np.mean(told[0] == told[1]):.3f} of the answers are the same"

    def agree_with_computation(self) -> None:
        found = load_file(self.in_process() / "model-final.safetensors")
        for name, value in self.compute()[0].items():
            np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-6, atol=1e-7)
