"""ProjAvg (FedSPDnet, Eq. 7): W_{t+1} = uf(mean_k W_k) for Stiefel weights; the plain mean for all others."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..geometry.stiefel import proj_avg
from .stiefel import StiefelAverage


@dataclass(frozen=True)
class ProjAvg(StiefelAverage):
    """The mean of the clients' matrices, put back on the Stiefel manifold by its polar factor."""

    from_mean: ClassVar[bool] = True

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        return proj_avg(matrices, shares, name)
