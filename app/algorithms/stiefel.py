"""What ProjAvg and RLAvg share: the plain mean, but for Stiefel weights, whose mean stays on the manifold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..models.base import Weights
from .base import Algorithm, Update


@dataclass(frozen=True)
class StiefelAverage(Algorithm):
    """A subclass says what the mean of Stiefel matrices is."""

    keeps_manifold: ClassVar[bool] = True
    for_model: ClassVar[str | None] = "spdnet"

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        """A point of St(p, k), float64. previous: the global W_t (p, k). matrices: the clients' (p, k).

        shares: the weight of each. Raises FedgeoError naming the layer ``name`` where there is no such mean.
        """
        raise NotImplementedError

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, state = super().aggregate(weights, state, updates, clients)
        shares = [u.examples for u in updates]
        for name, previous in weights.items():
            if name.startswith("stiefel."):
                mean[name] = self.stiefel_mean(previous, [u.weights[name] for u in updates], shares, name)
        return mean, state
