"""Methods whose linear head comes from class statistics: one round, no local training, no client drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..algorithms.base import Algorithm
from ..geometry.class_statistics import ClassStatistics
from ..geometry.closed_form import Head
from ..models.base import Weights


@dataclass(frozen=True)
class FromStatistics(Algorithm):
    """Clients send their class statistics once, the server makes the head of them.

    ``covariances``: whether the statistics must hold covariances; else counts and means are all that is sent.
    ``from_sums``: whether sums over all clients, with a covariance pooled over classes, are enough, so that masks fit.
    ``robust``: the values of federation.robust that fit, beside none.
    """

    trains: ClassVar[bool] = False
    for_model: ClassVar[str | None] = "linear"
    covariances: ClassVar[bool] = True
    from_sums: ClassVar[bool] = False
    robust: ClassVar[tuple[str, ...]] = ("clip", "median")

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> Head:
        """The head (C, p), (C,) from the clients' statistics. seed: of the run, for a method that draws."""
        raise NotImplementedError

    def head(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> Weights:
        """The head as the weights of a linear model, float32."""
        weight, bias = self.solve(parts, classes, seed)
        return {"linear.weight": torch.from_numpy(weight).float(), "linear.bias": torch.from_numpy(bias).float()}
