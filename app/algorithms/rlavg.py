"""RLAvg (FedSPDnet, Eq. 11): W_{t+1} = R_{W_t}(mean_k L_{W_t}(W_k)) for Stiefel weights; the plain mean for others."""

from dataclasses import dataclass

from torch import Tensor

from ..geometry.stiefel import rl_avg
from .stiefel import StiefelAverage


@dataclass(frozen=True)
class RLAvg(StiefelAverage):
    """Lift the clients' matrices to the tangent space at the previous global W_t, average, and retract."""

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        return rl_avg(previous, matrices, shares, name)
