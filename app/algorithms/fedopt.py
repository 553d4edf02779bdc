"""FedOPT (Reddi et al., 2021): the server treats the clients' mean change as a gradient for its own optimiser.

Delta = sum_k (n_k / n) w_k - w_t, then

sgd:      m = momentum m + Delta                        w_{t+1} = w_t + server_lr m
others:   m = beta_1 m + (1 - beta_1) Delta             w_{t+1} = w_t + server_lr m / (sqrt(v) + tau)
adagrad:  v = v + Delta^2
yogi:     v = v - (1 - beta_2) Delta^2 sign(v - Delta^2)
adam:     v = beta_2 v + (1 - beta_2) Delta^2

with v = tau^2 before the first round. As in the paper, there is no bias correction, unlike torch's Adam. The
paper's server SGD has no momentum; 0.9 is ours (with 0 and server_lr = 1 it is FedAvg).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..models.base import Weights
from .base import Algorithm, Momentum, Positive, Update


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """server_lr: the server's step size. momentum: of sgd. beta_1, beta_2, tau: of the adaptive optimisers.

    The server keeps m under 'm.<name>' and, where there is one, v under 'v.<name>'.
    """

    from_mean: ClassVar[bool] = True

    optimiser: Literal["sgd", "adam", "yogi", "adagrad"] = "sgd"
    server_lr: Positive = 0.5
    momentum: Momentum = 0.9
    beta_1: Momentum = 0.9
    beta_2: Momentum = 0.99
    tau: Positive = 1e-3

    def server_state(self, weights: Weights) -> Weights:
        state = {f"m.{name}": torch.zeros_like(w) for name, w in weights.items()}
        if self.optimiser != "sgd":
            state |= {f"v.{name}": torch.full_like(w, self.tau**2) for name, w in weights.items()}
        return state

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, _ = super().aggregate(weights, {}, updates, clients)
        new: Weights = {}
        after: Weights = {}
        for name, w in weights.items():
            delta = mean[name] - w
            if self.optimiser == "sgd":
                m = self.momentum * state[f"m.{name}"] + delta
                new[name] = w + self.server_lr * m
            else:
                m = self.beta_1 * state[f"m.{name}"] + (1 - self.beta_1) * delta
                v = self.second_moment(state[f"v.{name}"], delta.square())
                new[name] = w + self.server_lr * m / (v.sqrt() + self.tau)
                after[f"v.{name}"] = v
            after[f"m.{name}"] = m
        return new, after

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from the last one and Delta^2."""
        if self.optimiser == "adagrad":
            return v + square
        if self.optimiser == "yogi":
            return v - (1 - self.beta_2) * square * torch.sign(v - square)
        return self.beta_2 * v + (1 - self.beta_2) * square
