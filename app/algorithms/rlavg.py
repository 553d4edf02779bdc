"""RLAvg (FedSPDnet, Eq. 11): W_{t+1} = R_{W_t}(mean_k L_{W_t}(W_k)) for Stiefel weights; the plain mean for others."""

from dataclasses import dataclass

from torch import Tensor

from app.algorithms.stiefel import StiefelAverage
from app.manifolds import rl_avg


@dataclass(frozen=True)
class RLAvg(StiefelAverage):
    """Lift the clients' matrices to the tangent space at the previous global W_t, average, and retract."""

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        return rl_avg(previous, matrices, shares, name)
