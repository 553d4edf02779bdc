"""One run on the server: discover the clients, run the strategy, score each round, write the run directory."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from app import figures, messages, report, strategies
from app.config import Config
from app.data.world import Samples, World, world
from app.engines.cohort import CohortGrid
from app.errors import FedgeoError
from app.evaluation import Scores, evaluate, f1_macro, scores_from_confusions
from app.likeness import Likeness
from app.models import build
from app.models.base import Weights
from app.models.eegnet import EEGNet
from app.node import local_algorithm
from app.results import RunDirectory
from app.seeds import INITIAL, generator, one_thread
from app.training.plain import predict

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
        report.write(results.path, results.finish("failed", text, server.facts()))
        raise
    summary = results.finish("completed", None, server.facts())
    report.write(results.path, summary)
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
        self.best = float("-inf")
        self.clock = time.monotonic()
        self.held_out: dict[str, Samples] = {}
        self.last: Scores | None = None

    def run(self) -> None:
        """The whole run, from the partition to the last figures."""
        config = self.config
        self.world: World = world(config)
        self.results.write("partition.json", self.world.partition_json())
        self.grid.discover(len(self.world), config.federation.deadline)
        if self.world.central:
            self.held_out = {part: self.world.held_out(part, None) for part in ("val", "test")}
        stiefel = local_algorithm(config).keeps_manifold
        self.model = build(config.model, self.world.inputs, len(self.world.classes), stiefel=stiefel)
        self.model.reset(generator(config.seed, INITIAL))
        initial = self.model.export()
        self.parameters = sum(value.numel() for value in initial.values())
        self.strategy = strategies.build(config, len(self.world), central=self.world.central)
        self.clock = time.monotonic()
        self.strategy.start(
            self.grid,
            messages.weights_record(initial),
            num_rounds=config.federation.rounds,
            timeout=config.federation.deadline,
            evaluate_fn=self.after_round,
        )
        self.draw()

    def after_round(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Score the round, write its line, keep the model. Round 0 is the state before the first."""
        traffic = self.grid.take_traffic()
        self.bytes_up += traffic.bytes_up
        self.bytes_down += traffic.bytes_down
        assert self.strategy is not None
        if number == 0:  # the phases before the first round have no line of their own
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
        row |= traffic.watched
        self.clock = time.monotonic()
        self.last = scores["test"]
        if "val" in scores:
            self.strategy.rate.step(scores["val"].loss)
        self.results.append(row)
        self.keep(number, row, weights)
        if self.on_round is not None:
            self.on_round(row)
        return MetricRecord({self.config.metric.name: row[self.config.metric.name]})

    def score(self, weights: Weights) -> dict[str, Scores]:
        """'test' and, where there are validation samples, 'val': by the server or from the clients' counts."""
        if self.world.central:
            self.model.load(weights)
            return {part: self.judge(s) for part, s in self.held_out.items() if len(s) or part == "test"}
        assert self.strategy is not None
        return {part: scores for part in ("val", "test") if (scores := self.pooled(self.strategy.evaluated, part))}

    def judge(self, held_out: Samples) -> Scores:
        """The model's scores on samples that the server holds."""
        if isinstance(self.model, EEGNet):  # nobody's batch statistics fit subjects nobody trained on: their own do
            self.model.calibrate(torch.from_numpy(held_out.x))
        outputs = predict(self.model, held_out.x)
        return evaluate(outputs, held_out.y, held_out.domain, self.world.domains, self.world.classes)

    def pooled(self, evaluated: dict[int, messages.Evaluation], part: str) -> Scores | None:
        """The scores over all clients' own samples; None where no client has validation samples."""
        entries = [(domain, *counts) for said in evaluated.values() for domain, counts in said[part].items()]
        if part == "val" and not entries:
            return None
        domains, confusions, losses = zip(*entries, strict=True) if entries else ((), (), ())
        scores = scores_from_confusions(confusions, [self.world.domains[d] for d in domains], losses)
        own = [np.sum([c for c, _ in said[part].values()], axis=0) for said in evaluated.values() if said[part]]
        return replace(scores, f1_macro_clients=math.fsum(f1_macro(c) for c in own) / len(own))

    def keep(self, number: int, row: dict[str, Any], weights: Weights) -> None:
        """model-final is the last round's; model-best that of the best validation round, or the last without."""
        self.results.save_model("final", weights, self.world.classes)
        chosen = row.get(f"val_{self.config.metric.name}", number)
        if chosen > self.best:
            self.best = chosen
            self.results.save_model("best", weights, self.world.classes)

    def draw(self) -> None:
        """The figures of the run."""
        folder = self.results.path / "figures"
        figures.curves(self.results.rows, folder / "curves.png", self.config.metric.name)
        assert self.strategy is not None and self.strategy.hello is not None and self.last is not None
        hello = self.strategy.hello
        names = [f"{domain or 'client'} {k}" for k, domain in zip(hello.clients, hello.domains, strict=True)]
        figures.label_distribution(hello.counts, hello.classes, folder / "label_distribution.png", names)
        figures.confusion(self.last.confusion, self.world.classes, folder / "confusion.png")
        counts = {"round": len(self.results.rows), "classes": hello.classes, "counts": self.last.confusion.tolist()}
        self.results.write_json("confusion.json", counts)
        if len(self.last.accuracy_by_domain) > 1:
            figures.domain_bars(self.last.accuracy_by_domain, folder / "domains.png")
        if isinstance(self.strategy, strategies.GGEUR):
            self.results.write_json("augmentation.json", self.strategy.record(hello))
            if self.strategy.likeness:
                self.draw_likeness(self.strategy.likeness, folder / "similarity.png")

    def draw_likeness(self, likeness: list[Likeness], path: Path) -> None:
        """Figure 6 for the two domains with the most classes to compare, and the figures of all pairs."""
        shown = max(likeness, key=lambda pair: len(pair.labels))
        names = [self.world.classes[label] for label in shown.labels]
        figures.similarity_heatmap(shown.matrix, names, names, path, *shown.domains)
        self.results.write_json("similarity.json", [pair.record() for pair in likeness])

    def facts(self) -> dict[str, Any]:
        """What only the server knows, for the summary; also of a run that failed on its way."""
        described = self.strategy.described if isinstance(self.strategy, strategies.GGEUR) else strategies.NOTHING_DRAWN
        return {
            "parameters": self.parameters,
            "added_samples": described.added,
            "perturbation_rms": described.perturbation_rms,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "peak_memory_mb": max(self.grid.peak_memory_mb, messages.peak_memory_mb()),
        }
