"""The round loop of the server: what is called after every round, and the interface of its callbacks.

Flower calls a RoundLoop as the strategy's ``evaluate_fn``. It takes the round's traffic, scores the weights, and hands
both as a Round to each callback in turn. A callback keeps its own state and says what of it a checkpoint must hold.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from .. import messages
from ..common.memory import spare_imports
from ..grids.cohort import CohortGrid, Traffic
from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..training.evaluation import Scores
from .scoring import Scorer


class Finished(Exception):  # noqa: N818 - it is no error
    """The run has ended before its last round, as it should."""


@dataclass(frozen=True, eq=False)
class Round:
    """A round that is done. scores: of 'test' and, where there are validation samples, 'val'.

    weights: the global model's, {} where nothing is shared. accuracy_by_client: of the clients' own models, where each
    has one. seconds: since the round before was scored.
    """

    number: int
    weights: Weights
    scores: dict[str, Scores]
    accuracy_by_client: dict[str, float] | None
    traffic: Traffic
    seconds: float

    @cached_property
    def row(self) -> dict[str, Any]:
        """The round's line in rounds.jsonl."""
        row = {"round": self.number, **self.scores["test"].row()}
        if "val" in self.scores:
            validated = self.scores["val"].row()
            row |= {f"val_{key}": value for key, value in validated.items() if not isinstance(value, dict)}
        row |= {
            "train_loss": self.traffic.train_loss,
            "seconds": self.seconds,
            "bytes_up": self.traffic.bytes_up,
            "bytes_down": self.traffic.bytes_down,
            "clients": self.traffic.trained,
            "failures": len(self.traffic.failures),
        }
        if self.accuracy_by_client is not None:
            row["accuracy_by_client"] = self.accuracy_by_client
        return row | self.traffic.watched


class Callback:
    """Something that happens after each round. Callbacks are called in the order of the loop's list."""

    finished = False  # whether the run should end after this round

    def on_start(self, weights: Weights, traffic: Traffic) -> None:
        """Before the first round, of a resumed run too: the weights it begins with, the traffic of the phases."""

    def on_round(self, done: Round) -> None:
        """After each round."""

    def on_end(self) -> None:
        """After the last round; not where the run has failed."""

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """What a resumed run needs: tensors by purpose, and JSON values by name."""
        return {}, {}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over what ``state`` gave when the checkpoint was saved."""


class RoundLoop:
    """The strategy's ``evaluate_fn``: scores each round and calls the callbacks. Raises Finished to end the run.

    metric: the figure that Flower logs.
    """

    def __init__(self, grid: CohortGrid, scorer: Scorer, callbacks: Sequence[Callback], metric: str) -> None:
        self.grid = grid
        self.scorer = scorer
        self.callbacks = callbacks
        self.metric = metric
        self._clock = time.monotonic()

    def __call__(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        weights, traffic = messages.split_weights(arrays)[0], self.grid.take_traffic()
        metrics = None
        if number == 0:
            self._start(weights, traffic)
        else:
            metrics = self._round(number, weights, traffic)
        if any(callback.finished for callback in self.callbacks):
            raise Finished
        return metrics

    def _start(self, weights: Weights, traffic: Traffic) -> None:
        for callback in self.callbacks:
            callback.on_start(weights, traffic)
        spare_imports()
        self._clock = time.monotonic()

    def _round(self, number: int, weights: Weights, traffic: Traffic) -> MetricRecord:
        scores, by_client = self.scorer.scores(weights), self.scorer.accuracy_by_client()
        now = time.monotonic()
        done = Round(number, weights, scores, by_client, traffic, now - self._clock)
        self._clock = now
        for callback in self.callbacks:
            callback.on_round(done)
        return MetricRecord({self.metric: done.row[self.metric]})

    def end(self) -> None:
        """The run has come to its end."""
        for callback in self.callbacks:
            callback.on_end()
