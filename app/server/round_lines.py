"""Each round's line in rounds.jsonl, and the bytes of the whole run."""

import logging
from collections.abc import Callable
from typing import Any

from ..grids.cohort import Traffic
from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from ..runs.summary import warning
from ..strategies.base import FedgeoStrategy
from .rounds import Callback, Round

log = logging.getLogger(__name__)

OnRound = Callable[[dict[str, Any]], None]


class TrafficTotal(Callback):
    """The array payload of all rounds and of the phases before the first, in bytes."""

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = 0

    def add(self, traffic: Traffic) -> None:
        self.bytes_up += traffic.bytes_up
        self.bytes_down += traffic.bytes_down

    def on_start(self, weights: Weights, traffic: Traffic) -> None:
        self.add(traffic)

    def on_round(self, done: Round) -> None:
        self.add(done.traffic)

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return {}, {"bytes": (self.bytes_up, self.bytes_down)}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.bytes_up, self.bytes_down = map(int, checkpoint.facts["bytes"])


class DrawnWarnings(Callback):
    """Tells, before the first round, what a person should know of the samples that clients have drawn."""

    def __init__(self, results: RunDirectory, strategy: FedgeoStrategy) -> None:
        self.results = results
        self.strategy = strategy
        self.told: list[str] = []

    def on_start(self, weights: Weights, traffic: Traffic) -> None:
        for text in self.strategy.warnings:
            self.told.append(text)
            self.results.warn(text)

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return {}, {"drawn_warnings": self.told}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.told = list(checkpoint.facts.get("drawn_warnings", ()))
        self.results.data_warnings += self.told


class RoundLines(Callback):
    """Writes the round's line, and logs what it warns of."""

    def __init__(self, results: RunDirectory) -> None:
        self.results = results

    def on_round(self, done: Round) -> None:
        self.results.append(done.row)
        if (text := warning(self.results.config, done.row)) is not None:
            log.warning("warning: %s", text)


class Listener(Callback):
    """Hands each round's line to whoever follows the run in this process."""

    def __init__(self, listen: OnRound) -> None:
        self.listen = listen

    def on_round(self, done: Round) -> None:
        self.listen(done.row)
