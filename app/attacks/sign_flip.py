"""The opposite of what was learned: w_t - factor (w_k - w_t)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..algorithms.base import Positive
from ..models.base import Weights
from .base import Attack, Changed


@dataclass(frozen=True)
class SignFlip(Attack):
    """factor: times as far."""

    name: ClassVar[str] = "sign_flip"
    changes: ClassVar[Changed] = "weights"

    factor: Positive = 1.0

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        return {name: w - self.factor * (learned[client][name] - w) for name, w in start.items()}
