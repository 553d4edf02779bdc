"""Weights with Gaussian noise, of every tensor factor times the root mean square of what was learned, w_k - w_t."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..algorithms.base import Positive
from ..models.base import Weights
from .base import Attack, Changed


@dataclass(frozen=True)
class Noise(Attack):
    """factor: see above."""

    name: ClassVar[str] = "noise"
    changes: ClassVar[Changed] = "weights"

    factor: Positive = 10.0

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        sent = {}
        for name, w in learned[client].items():
            size = self.factor * (w - start[name]).double().square().mean().sqrt()
            sent[name] = w + (size * torch.from_numpy(rng.standard_normal(w.shape))).to(w.dtype)
        return sent
