"""FedNTD (Lee et al., 2022): keep what the global model knows about the classes a sample does not belong to.

Client:  minimise  CE + beta tau^2 KL(q_glob || q),   q = softmax over the C - 1 classes other than y of logits / tau,
         q_glob the same from the global weights w_t.
Server:  w_{t+1} = sum_k (n_k / n) w_k.

beta = 0 is FedAvg. With two classes only one is not true, the divergence is zero, and the method is refused.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.errors import FedgeoError
from ..models.base import Weights
from .base import Algorithm, Forward, Local, NonNegative, Positive, cross_entropy


@dataclass(frozen=True)
class FedNTD(Algorithm):
    """beta: weight of the distillation. tau: its temperature."""

    beta: NonNegative = 1.0
    tau: Positive = 1.0

    min_classes: ClassVar[int] = 3

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        logits = forward(weights, x).logits
        if logits.shape[-1] < 3:
            raise FedgeoError(
                f"method=fedntd: must have at least 3 classes, not {logits.shape[-1]}: with 2 it is FedAvg, use that"
            )
        with torch.no_grad():
            target = self.not_true(forward(local.start, x).logits, y)
        divergence = F.kl_div(self.not_true(logits, y), target, reduction="none", log_target=True).sum(-1)
        return cross_entropy(logits, y) + self.beta * self.tau**2 * divergence

    def not_true(self, logits: Tensor, y: Tensor) -> Tensor:
        """Log-probabilities (..., B, C) over the classes other than y; at y a very low, finite number."""
        true = F.one_hot(y, logits.shape[-1]).bool()
        # finite, for -inf would give 0 * (inf - inf) in the divergence
        return F.log_softmax((logits / self.tau).masked_fill(true, torch.finfo(logits.dtype).min), dim=-1)
