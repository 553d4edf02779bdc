"""A base method from outside the app: FedAvg whose server goes a share of the way only."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.algorithms.base import Algorithm, Positive, Update
from app.models.base import Weights


@dataclass(frozen=True)
class Damped(Algorithm):
    """share: of the way from the old weights to the mean of the clients'."""

    share: Positive = 0.5

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, _ = super().aggregate(weights, state, updates, clients)
        return {name: w + self.share * (mean[name] - w) for name, w in weights.items()}, state
