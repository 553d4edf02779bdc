"""SCAFFOLD (Karimireddy et al., 2020), option II: control variates cancel the drift of the clients.

Client:  step along  g - c_k + c;  after T steps of size eta,
         c_k+ = c_k - c + (w_t - w_k) / (eta a),   and it sends  c_k+ - c_k  beside w_k.
Server:  w_{t+1} = w_t + server_lr mean_{k in S} (w_k - w_t),   c = c + (1/K) sum_{k in S} (c_k+ - c_k).

c_k+ is meant to be the client's mean gradient along its path. Under plain SGD a = T does that. With momentum rho a
gradient also moves the weights in the steps after its own, in all
    a = sum_{t<T} (1 - rho^{T-t}) / (1 - rho)
times eta for a constant gradient; dividing by T eta would overstate c_k up to 1/(1 - rho) times, and diverges.

S are the round's participants, all of equal weight, K all clients. Weight decay counts as part of the objective.
Derived for local SGD: an adaptive local optimiser has no such a.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..models.base import Weights
from .base import Algorithm, Local, Positive, Trained, Update, average


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """server_lr: the global step size (1 in the paper's experiments). Server and clients keep c and c_k."""

    server_lr: Positive = 0.25

    optimisers: ClassVar[tuple[str, ...]] = ("sgd",)

    def client_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def gradient_offset(self, local: Local) -> Weights:
        return {name: c - local.state[name] for name, c in local.auxiliary.items()}

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        length = trained.lr * effective_steps(trained.steps, trained.momentum)
        change = {name: (local.start[name] - w) / length - local.auxiliary[name] for name, w in trained.weights.items()}
        return change, {name: local.state[name] + d for name, d in change.items()}

    def server_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def auxiliary(self, state: Weights) -> Weights:
        return state

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        equal = [1.0] * len(updates)
        mean = average((u.weights for u in updates), equal)
        change = average((u.auxiliary for u in updates), equal)
        share = len(updates) / clients
        new = {name: w + self.server_lr * (mean[name] - w) for name, w in weights.items()}
        return new, {name: c + share * change[name] for name, c in state.items()}


def effective_steps(steps: int, momentum: float) -> float:
    """a: how far ``steps`` SGD steps with ``momentum`` go along a constant gradient, in units of lr times it."""
    return sum((1 - momentum ** (steps - t)) / (1 - momentum) for t in range(steps))
