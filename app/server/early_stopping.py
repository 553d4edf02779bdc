"""What the validation loss decides: the clients' learning rate, and when training stops."""

from typing import Any

from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..strategies.base import FedgeoStrategy
from .rounds import Callback, Round


class RateSchedule(Callback):
    """Tells the learning rate's schedule of each round's mean validation loss."""

    def __init__(self, strategy: FedgeoStrategy) -> None:
        self.strategy = strategy

    def on_round(self, done: Round) -> None:
        if "val" in done.scores:
            self.strategy.validated(done.scores["val"].loss)


class EarlyStopping(Callback):
    """Ends the run after ``patience`` rounds without a lower validation loss; never where nothing is validated."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.least, self.round_of_least = float("inf"), 0
        self.last = 0

    @property
    def finished(self) -> bool:  # type: ignore[override]
        return self.last - self.round_of_least >= self.patience

    def on_round(self, done: Round) -> None:
        self.last = done.number
        if (loss := done.row.get("val_loss", -done.number)) < self.least:
            self.least, self.round_of_least = loss, done.number

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return {}, {"least_loss": (self.least, self.round_of_least)}

    def restore(self, checkpoint: Checkpoint) -> None:
        least, number = checkpoint.facts["least_loss"]
        self.least, self.round_of_least, self.last = float(least), int(number), checkpoint.round
