"""One run on the server: discover the clients, run the strategy, score each round, write the run directory."""

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from .. import messages
from ..algorithms.centralised import Centralised
from ..algorithms.registry import local_algorithm
from ..common.code import code_hash
from ..common.errors import FedgeoError, describe
from ..common.logs import log_to
from ..common.memory import spare_imports
from ..common.seeds import INITIAL, generator, one_thread
from ..config.schema import Config
from ..data.experiment import build_model
from ..data.federated_dataset import FederatedDataset, Samples, federated_dataset
from ..encoders.text_classifier import text_classifier
from ..geometry.similarity import DomainSimilarity
from ..grids.cohort import CohortGrid
from ..grids.placement import together
from ..models.base import Weights
from ..models.eegnet import EEGNet
from ..reports import figures, run_report
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from ..strategies.augmented import NOTHING_DRAWN, AugmentedStrategy
from ..strategies.base import FedgeoStrategy
from ..strategies.compatibility import check
from ..strategies.handshake import Handshake, shake_hands
from ..training.evaluation import Scores, evaluate, f1_macro, scores_from_confusions
from ..training.plain import predict
from . import strategy
from .privacy_report import privacy_report
from .remote_dataset import remote_dataset
from .reply_validation import ReplyValidator

log = logging.getLogger(__name__)

PULL_SECONDS = 0.01  # between two looks for replies in a simulation
OnRound = Callable[[dict[str, Any]], None]


def run(
    grid: Grid,
    config: Config,
    run_dir: Path,
    on_round: OnRound | None = None,
    *,
    overrides: str = "",
    state: Path | None = None,
) -> dict[str, Any]:
    """Run ``config`` over ``grid``, or go on with what ``config.resume`` names, and return the summary.

    Whatever happens after the run directory exists is written there: a run that raises leaves a summary with
    status failed and what it had, and the exception goes on to the caller. overrides: what the nodes were given.
    state: the folder where simulated nodes keep what they keep; it goes once the run is complete.
    """
    if config.engine == "deployment":
        state = None  # what the sites keep lies with them, and the server cannot tell whether it is there
    results = RunDirectory(run_dir, config, overrides, state)
    try:
        summary = _run(grid, config, results, on_round)
    finally:
        results.close()
    if state is not None:
        shutil.rmtree(state, ignore_errors=True)
    return summary


def _run(grid: Grid, config: Config, results: RunDirectory, on_round: OnRound | None) -> dict[str, Any]:
    log_to(results.path)
    if hasattr(grid, "pull_interval"):  # a simulation's: its own tenth of a second can be longer than a round
        grid.pull_interval = PULL_SECONDS
    server = Server(CohortGrid(grid), config, results, on_round)
    try:
        with one_thread():
            server.run()
    except BaseException as error:
        run_report.write(results.path, results.finish("failed", describe(error), server.facts()))
        raise
    summary = results.finish("completed", None, server.facts())
    run_report.write(results.path, summary)
    return summary


class Stopped(Exception):  # noqa: N818
    """The run has ended before its last round, as it should."""


class Server:
    """What one run knows on the server side."""

    def __init__(self, grid: CohortGrid, config: Config, results: RunDirectory, on_round: OnRound | None) -> None:
        self.grid = grid
        self.config = config
        self.results = results
        self.on_round = on_round
        self.strategy: FedgeoStrategy | None = None
        self.replies = ReplyValidator(config, grid)
        grid.check = self.replies.check
        self.parameters = 0
        self.bytes_up = self.bytes_down = 0
        self.best = float("-inf")
        self.patience: int | None = None  # rounds without a better validation loss after which the run ends
        self.least_loss = (float("inf"), 0)  # and its round
        self.clock = time.monotonic()
        self.held_out: dict[str, Samples] = {}
        self.confusion: np.ndarray | None = None  # of the last round's test samples
        self.best_weights: Weights = {}
        self.final_weights: Weights = {}

    def run(self) -> None:
        """The whole run, from the partition to the last figures."""
        config = self.config
        check(config)
        self.dataset, hello = self.assemble()
        self.write_partition()
        if self.dataset.central:
            self.held_out = {part: self.dataset.held_out(part, None) for part in ("val", "test")}
        for note in getattr(self.dataset, "notes", ()):
            log.info("%s", note)
        self.model = build_model(config, local_algorithm(config), self.dataset)
        self.replies.expect(local_algorithm(config), self.model, self.dataset.inputs, len(self.dataset.domains))
        initial = self.initial()
        self.parameters = sum(value.numel() for value in initial.values())
        self.strategy = strategy.build(config, self.dataset)
        self.strategy.hello = hello
        algorithm = local_algorithm(config)
        if isinstance(algorithm, Centralised):
            self.patience = algorithm.patience
        self.strategy.folder = self.results.checkpoints
        if self.results.checkpoint is not None:
            initial = self.go_on(self.results.checkpoint, initial)
        self.clock = time.monotonic()
        with contextlib.suppress(Stopped):
            self.strategy.start(
                self.grid,
                messages.weights_record(initial if algorithm.shares else {}),
                num_rounds=self.strategy.rounds,
                timeout=config.federation.deadline,
                evaluate_fn=self.after_round,
            )
        self.hand_over()
        self.draw()

    def assemble(self) -> tuple[FederatedDataset, Handshake | None]:
        """Find the clients, and what they hold: of a simulation it is known, a deployment's sites are asked."""
        config, federation = self.config, self.config.federation
        if config.engine == "deployment":
            self.grid.gather(
                messages.Agreed(self.results.origin.run, code_hash()), federation.min_nodes, federation.deadline
            )
            hello = shake_hands(self.grid, federation, code_hash())
            return remote_dataset(hello, self.grid.names), hello
        known = federated_dataset(config)
        self.grid.discover(len(known), federation.deadline, together(config, len(known)))
        return known, None

    def hand_over(self) -> None:
        """Send every site of a deployment the final model. One that cannot be reached does not undo the run."""
        if not self.grid.names or not self.final_weights:
            return
        content = RecordDict({messages.ARRAYS: messages.weights_record(self.final_weights)})
        self.grid.select()
        asked = [Message(content, client, messages.FINAL) for client in self.grid.get_node_ids()]
        for reply in self.grid.send_and_receive(asked, timeout=self.config.federation.deadline):
            if reply.has_error():
                client = reply.metadata.src_node_id
                log.warning("site %s has not taken the final model: %s", self.grid.names[client], reply.error.reason)
        self.bytes_down += self.grid.take_traffic().bytes_down

    def initial(self) -> Weights:
        """The weights that the first round begins with."""
        self.model.reset(generator(self.config.seed, INITIAL))
        fresh = self.model.export()

        def text(templates: Sequence[str]) -> torch.Tensor:
            encoder = self.config.encoder.settings
            rows = text_classifier(
                self.dataset.classes, templates, encoder["model"], encoder["pretrained"], encoder["checkpoint"]
            )
            dimension = self.dataset.inputs["dimension"]
            if rows.shape[1] != dimension:
                raise FedgeoError(
                    f"encoder.model={encoder['model']}: its text embeddings have dimension {rows.shape[1]}, the "
                    f"embeddings of data={self.config.data.name} have {dimension}: name the model they were made with"
                )
            return rows

        return local_algorithm(self.config).initial(fresh, text)

    def after_round(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Score the round, write its line, keep the model. Round 0 is the state before the first."""
        traffic = self.grid.take_traffic()
        self.bytes_up += traffic.bytes_up
        self.bytes_down += traffic.bytes_down
        assert self.strategy is not None
        if number == 0:  # the phases before the first round have no line of their own
            if self.results.checkpoint is None:
                self.draw_phases()
                self.save(0, messages.split_weights(arrays)[0])
            elif self.exhausted(self.results.checkpoint.round):
                raise Stopped
            spare_imports()
            self.clock = time.monotonic()
            return None
        weights, _ = messages.split_weights(arrays)
        scores = self.score(weights)
        row = {"round": number, **scores["test"].row()}
        if "val" in scores:
            row |= {f"val_{key}": value for key, value in scores["val"].row().items() if not isinstance(value, dict)}
        row |= {
            "train_loss": traffic.train_loss,
            "seconds": time.monotonic() - self.clock,
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "clients": traffic.trained,
            "failures": len(traffic.failures),
        }
        if not local_algorithm(self.config).shares:
            row["accuracy_by_client"] = self.by_client()
        row |= traffic.watched
        self.clock = time.monotonic()
        self.confusion = scores["test"].confusion
        if "val" in scores:
            self.strategy.rate.step(scores["val"].loss)
        told = len(self.results.warnings)
        self.results.append(row)
        for warning in self.results.warnings[told:]:
            log.warning("warning: %s", warning)
        self.keep(number, row, weights)
        if (loss := row.get("val_loss", -number)) < self.least_loss[0]:
            self.least_loss = (loss, number)
        self.save(number, weights)
        if self.on_round is not None:
            self.on_round(row)
        if self.exhausted(number):
            raise Stopped
        return MetricRecord({self.config.metric.name: row[self.config.metric.name]})

    def exhausted(self, number: int) -> bool:
        """Whether by round ``number`` the validation loss has not improved for too long."""
        return self.patience is not None and number - self.least_loss[1] >= self.patience

    # --- where the run stands, to go on from ---

    def save(self, number: int, weights: Weights) -> None:
        """The checkpoint of round ``number``, the last thing that is written of it."""
        assert self.strategy is not None
        server, facts = self.strategy.state()
        tensors = {"weights": weights, "best": self.best_weights, "server": server}
        if self.confusion is not None:
            tensors["test"] = {"confusion": torch.from_numpy(self.confusion)}
        facts |= {
            "best": self.best,
            "least_loss": self.least_loss,
            "bytes": (self.bytes_up, self.bytes_down),
            "seconds": (self.results.seconds, self.results.cpu_seconds),
        }
        self.results.save_checkpoint(Checkpoint(number, tensors, facts))

    def go_on(self, checkpoint: Checkpoint, initial: Weights) -> Weights:
        """Take over where the run stood, models included. Returns the weights to go on with."""
        assert self.strategy is not None
        facts = checkpoint.facts
        if self.results.stateless and checkpoint.round and self.clients_keep_state(initial):
            raise FedgeoError(
                f"resume={self.results.path}: what its clients kept for method={self.config.method.name} is gone, as "
                "it is once a run is complete: only a run that was broken off can be continued"
            )
        self.strategy.restore(checkpoint)
        if isinstance(self.strategy, AugmentedStrategy):
            told = self.strategy.described.clients
            self.replies.totals = {client: sum(counts["total"]) for client, counts in told.items()}
        self.best = float(facts["best"])
        self.least_loss = (float(facts["least_loss"][0]), int(facts["least_loss"][1]))
        self.bytes_up, self.bytes_down = map(int, facts["bytes"])
        self.results.earlier_seconds, self.results.earlier_cpu_seconds = map(float, facts["seconds"])
        self.final_weights = weights = checkpoint.group("weights")
        self.best_weights = checkpoint.group("best")
        if checkpoint.round:
            self.confusion = checkpoint.group("test")["confusion"].numpy()
            self.results.save_model("final", weights, self.dataset)
        if self.best_weights:
            self.results.save_model("best", self.best_weights, self.dataset)
        return weights

    def clients_keep_state(self, weights: Weights) -> bool:
        """Whether a client's next round depends on more than what it is sent."""
        algorithm, kept = local_algorithm(self.config), self.config.training.keep_moments
        return bool(
            kept
            or not algorithm.shares
            or algorithm.centralised
            or algorithm.client_state(weights)
            or self.model.local_state()
        )

    def write_partition(self) -> None:
        """Who holds what; the data of a resumed run must be what they were."""
        path, text = self.results.path / "partition.json", self.dataset.partition_json()
        if self.results.checkpoint is not None and path.read_text() != text:
            raise FedgeoError(f"resume={self.results.path}: the data, or who holds what, has changed: see {path.name}")
        self.results.write("partition.json", text)

    def score(self, weights: Weights) -> dict[str, Scores]:
        """'test' and, where there are validation samples, 'val': by the server or from the clients' counts."""
        assert self.strategy is not None
        if self.strategy.central:
            self.model.load(weights)
            return {part: self.judge(s) for part, s in self.held_out.items() if len(s) or part == "test"}
        return {part: scores for part in ("val", "test") if (scores := self.pooled(self.strategy.evaluated, part))}

    def judge(self, held_out: Samples) -> Scores:
        """The model's scores on samples that the server holds."""
        if isinstance(self.model, EEGNet):  # nobody's batch statistics fit subjects nobody trained on: their own do
            self.model.calibrate(torch.from_numpy(held_out.x))
        outputs = predict(self.model, held_out.x)
        return evaluate(outputs, held_out.y, held_out.domain, self.dataset.domains, self.dataset.classes)

    def pooled(self, evaluated: dict[int, messages.Evaluation], part: str) -> Scores | None:
        """The scores over all clients' own samples; None where no client has validation samples."""
        entries = [
            (client if self.grid.names else domain, *counts)  # a site is one domain, whatever it calls it
            for client, said in evaluated.items()
            for domain, counts in said[part].items()
        ]
        if part == "val" and not entries:
            return None
        domains, confusions, losses = zip(*entries, strict=True) if entries else ((), (), ())
        scores = scores_from_confusions(confusions, [self.dataset.domains[d] for d in domains], losses)
        own = [np.sum([c for c, _ in said[part].values()], axis=0) for said in evaluated.values() if said[part]]
        return replace(scores, f1_macro_clients=math.fsum(f1_macro(c) for c in own) / len(own))

    def by_client(self) -> dict[str, float]:
        """The accuracy of each client's own model on the test samples that it was asked about."""
        assert self.strategy is not None
        counted = {k: sum(c for c, _ in said["test"].values()) for k, said in self.strategy.evaluated.items()}
        return {str(k): float(np.trace(c) / np.sum(c)) for k, c in counted.items() if np.any(c)}

    def keep(self, number: int, row: dict[str, Any], weights: Weights) -> None:
        """model-final is the last round's; model-best that of the best validation round, or the last without.

        Where nothing is shared there is no common model to keep.
        """
        if not weights:
            return
        self.final_weights = weights
        self.results.save_model("final", weights, self.dataset)
        chosen = row.get(self.results.val_metric, number)
        if self.results.val_metric == "val_loss":
            chosen = -chosen
        if chosen > self.best:
            self.best = chosen
            self.best_weights = weights
            self.results.save_model("best", weights, self.dataset)

    def draw_phases(self) -> None:
        """What is known before the first round."""
        assert self.strategy is not None and self.strategy.hello is not None
        hello, folder = self.strategy.hello, self.results.path / "figures"
        names = [f"{domain or 'client'} {k}" for k, domain in zip(hello.clients, hello.domains, strict=True)]
        figures.label_distribution(hello.counts, hello.classes, folder / "label_distribution.png", names)
        if isinstance(self.strategy, AugmentedStrategy):
            self.results.write_json("augmentation.json", self.strategy.record(hello))
        if isinstance(self.strategy, AugmentedStrategy) and self.strategy.similarities:
            self.draw_similarities(self.strategy.similarities, folder / "similarity.png")

    def draw(self) -> None:
        """The figures of the run."""
        folder, rows = self.results.path / "figures", self.results.rows
        figures.curves(rows, folder / "curves.png", self.config.metric.name)
        assert self.confusion is not None
        figures.confusion(self.confusion, self.dataset.classes, folder / "confusion.png")
        counts = {"round": len(rows), "classes": self.dataset.classes, "counts": self.confusion.tolist()}
        self.results.write_json("confusion.json", counts)
        if len(rows[-1]["accuracy_by_domain"]) > 1:
            figures.domain_bars(rows[-1]["accuracy_by_domain"], folder / "domains.png")

    def draw_similarities(self, similarities: Sequence[DomainSimilarity], path: Path) -> None:
        """Figure 6 for the two domains with the most classes to compare, and the figures of all pairs."""
        shown = max(similarities, key=lambda pair: len(pair.labels))
        names = [self.dataset.classes[label] for label in shown.labels]
        figures.similarity_heatmap(shown.matrix, names, names, path, *shown.domains)
        self.results.write_json("similarity.json", [pair.record() for pair in similarities])

    def facts(self) -> dict[str, Any]:
        """What only the server knows, for the summary; also of a run that failed on its way."""
        described = NOTHING_DRAWN
        if isinstance(self.strategy, AugmentedStrategy):
            described = self.strategy.described
        return {
            "privacy": privacy_report(self.strategy),
            "parameters": self.parameters,
            "added_samples": described.added,
            "perturbation_rms": described.perturbation_rms,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "peak_memory_mb": max(self.grid.peak_memory_mb, messages.peak_memory_mb()),
        }
