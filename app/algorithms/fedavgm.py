"""FedAvgM (Hsu et al., 2019): FedAvg with momentum on the server.

Server:  v = beta v + (w_t - sum_k (n_k / n) w_k),   w_{t+1} = w_t - server_lr v.

The paper has server_lr = 1; with beta = 0 too, it is FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..models.base import Weights
from .base import Algorithm, Momentum, Positive, Update


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """beta: the server's momentum. server_lr: its step size. The server keeps v."""

    from_mean: ClassVar[bool] = True

    beta: Momentum = 0.9
    server_lr: Positive = 1.0

    def server_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, _ = super().aggregate(weights, {}, updates, clients)
        v = {name: self.beta * state[name] + (w - mean[name]) for name, w in weights.items()}
        return {name: w - self.server_lr * v[name] for name, w in weights.items()}, v
