"""Weights times a factor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..algorithms.base import Positive
from ..models.base import Weights
from .base import Attack, Changed


@dataclass(frozen=True)
class Scaled(Attack):
    """factor: of all weights."""

    name: ClassVar[str] = "scaled"
    changes: ClassVar[Changed] = "weights"

    factor: Positive = 10.0

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        return {name: self.factor * w for name, w in learned[client].items()}
