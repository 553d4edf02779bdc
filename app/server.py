"""One run on the server: discover the clients, run the strategy, evaluate each round, write the run directory."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from app import figures, messages, report, strategies
from app.config import Config
from app.data.pool import Pool, pool
from app.engines.cohort import CohortGrid
from app.errors import FedgeoError
from app.evaluation import Scores, evaluate
from app.models import build
from app.models.base import Model
from app.results import RunDirectory
from app.seeds import INITIAL, generator, one_thread

OnRound = Callable[[dict[str, Any]], None]


def run(grid: Grid, config: Config, run_dir: Path, on_round: OnRound | None = None) -> dict[str, Any]:
    """Run ``config`` over ``grid`` and return the summary.

    Whatever happens after the run directory exists is written there: a run that raises leaves a summary with
    status failed and what it had, and the exception goes on to the caller.
    """
    results = RunDirectory(run_dir, config)
    server = Server(CohortGrid(grid), config, results, on_round)
    try:
        with one_thread():
            server.run()
    except BaseException as error:
        text = str(error) if isinstance(error, FedgeoError) else f"{type(error).__name__}: {error}"
        summary = results.finish("failed", text, server.facts())
        report.write(results.path, summary)
        raise
    summary = results.finish("completed", None, server.facts())
    report.write(results.path, summary)
    shutil.rmtree(results.path / "state", ignore_errors=True)  # what the clients kept for this run
    return summary


class Server:
    """What one run knows on the server side."""

    def __init__(self, grid: CohortGrid, config: Config, results: RunDirectory, on_round: OnRound | None) -> None:
        self.grid = grid
        self.config = config
        self.results = results
        self.on_round = on_round
        self.strategy: strategies.Phased | None = None
        self.parameters = 0
        self.bytes_up = self.bytes_down = 0
        self.best = -np.inf
        self.clock = time.monotonic()

    def run(self) -> None:
        """The whole run, from the partition to the last figures."""
        config = self.config
        world = pool(config)
        classes = world.source.classes
        self.results.write("partition.json", world.partition.to_json(world.source, world.split))
        self.grid.discover(len(world.partition), config.federation.deadline)
        val, test = self._held_out(world, world.split.val), self._held_out(world, world.split.test)
        model = build(config.model, dimension=test[0].shape[1], classes=len(classes))
        model.reset(generator(config.seed, INITIAL))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.strategy = strategies.build(config, len(world.partition))

        def score(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            return self._score(number, arrays, model, world, val, test)

        self.clock = time.monotonic()
        self.strategy.start(
            self.grid,
            messages.weights_record(model.export()),
            num_rounds=config.federation.rounds,
            timeout=config.federation.deadline,
            evaluate_fn=score,
        )
        self.results.save_model("final", model.export(), classes)
        self._draw(world)

    def _held_out(self, world: Pool, rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """(x, y, domain) of held-out rows."""
        return torch.from_numpy(world.features(rows)), world.source.labels[rows], world.source.domain[rows]

    def _score(self, number: int, arrays: ArrayRecord, model: Model, world: Pool, val: Any, test: Any) -> MetricRecord:
        """After each round (0: before the first): evaluate, write the line, keep the best model."""
        weights, _ = messages.split_weights(arrays)
        model.load(weights)
        traffic = self.grid.take_traffic()
        self.bytes_up += traffic.bytes_up
        self.bytes_down += traffic.bytes_down
        scores = self._evaluate(model, world, test)
        if number == 0:  # the phases before the first round have no line of their own
            self.clock = time.monotonic()
            return MetricRecord({self.config.metric.name: scores.row()[self.config.metric.name]})
        row = {"round": number, **scores.row()}
        if len(val[1]):
            row |= self._evaluate(model, world, val).row("val_")
        row |= {
            "train_loss": traffic.train_loss,
            "seconds": time.monotonic() - self.clock,
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "clients": traffic.replies,
            "failures": len(traffic.failures),
        }
        self.clock = time.monotonic()
        row.pop("val_accuracy_by_domain", None)
        self.results.append(row)
        if self.on_round is not None:
            self.on_round(row)
        chosen = row.get(f"val_{self.config.metric.name}", number)  # without validation: the last round
        if chosen > self.best:
            self.best = chosen
            self.results.save_model("best", weights, world.source.classes)
        return MetricRecord({self.config.metric.name: row[self.config.metric.name]})

    def _evaluate(self, model: Model, world: Pool, held_out: Any) -> Scores:
        x, y, domain = held_out
        model.eval()
        with torch.no_grad():
            logits = torch.cat([model(part).logits for part in x.split(4096)])
        return evaluate(logits.numpy(), y, domain, world.source.domains, world.source.classes)

    def _draw(self, world: Pool) -> None:
        folder = self.results.path / "figures"
        figures.curves(self.results.rows, folder / "curves.png", self.config.metric.name)
        assert self.strategy is not None and self.strategy.hello is not None
        hello = self.strategy.hello
        names = [f"{domain or 'client'} {i}" for i, domain in enumerate(hello.domains)]
        figures.label_distribution(hello.counts, hello.classes, folder / "label_distribution.png", names)

    def facts(self) -> dict[str, Any]:
        """What only the server knows, for the summary; also of a run that failed on its way."""
        return {
            "parameters": self.parameters,
            "added_samples": getattr(self.strategy, "added", 0),
            "perturbation_rms": getattr(self.strategy, "perturbation_rms", 0.0),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "peak_memory_mb": max(self.grid.peak_memory_mb, messages.peak_memory_mb()),
        }
