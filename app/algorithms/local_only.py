"""Local only: every client trains a model of its own, and nothing is exchanged. What federation must beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..models.base import Weights
from .base import Algorithm, Update


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """All clients start from the same weights, as in federation. SPDnet's stay on the manifold: none is averaged."""

    keeps_manifold: ClassVar[bool] = True
    shares: ClassVar[bool] = False

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        return weights, state
