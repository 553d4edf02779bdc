"""FedDyn (Acar et al., 2021): each client's objective is tilted so that their minima agree.

Client:  minimise  F_k(w) - <h_k, w> + alpha/2 ||w - w_t||^2,  whose gradient is  g - h_k + alpha (w - w_t);
         h_k = h_k - alpha (w_k - w_t), which at the minimum is the client's own gradient at w_k.
Server:  h = h - (alpha/K) sum_{k in S} (w_k - w_t),   w_{t+1} = mean_{k in S} w_k - h / alpha.

S are the round's participants, all of equal weight, K all clients. alpha = 0 is undefined, and alpha -> 0 is not
FedAvg, since h/alpha keeps its size; with h and h_k held at zero it is equal-weight FedProx with mu = alpha.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..common.errors import FedgeoError
from ..models.base import Weights
from .base import Algorithm, Local, Trained, Update, average


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """alpha: strength of the dynamic regulariser, above 0. The server keeps h, a client h_k.

    The terms enter as their gradients, so the reported loss leaves them out.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise FedgeoError(
                f"method.alpha={self.alpha}: must be above 0 and finite: FedDyn divides by it (0 is not FedAvg)"
            )

    def client_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    @property
    def proximal_weight(self) -> float:
        return self.alpha

    def gradient_offset(self, local: Local) -> Weights:
        return {name: -h for name, h in local.state.items()}

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        return {}, {
            name: h - self.alpha * (trained.weights[name] - local.start[name]) for name, h in local.state.items()
        }

    def server_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean = average((u.weights for u in updates), [1.0] * len(updates))
        share = len(updates) / clients
        h = {name: state[name] - self.alpha * share * (mean[name] - w) for name, w in weights.items()}
        return {name: m - h[name] / self.alpha for name, m in mean.items()}, h
