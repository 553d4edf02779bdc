"""CLIP's zero-shot classifier: the classes' names in sentences are the linear head, and nothing is trained."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..models.base import Weights
from .base import Algorithm, Text


@dataclass(frozen=True)
class ZeroShot(Algorithm):
    """templates: sentences with {} where a class's name goes; their mean embedding is the class's row."""

    templates: list[str]

    for_model: ClassVar[str | None] = "linear"
    trains: ClassVar[bool] = False
    needs_text: ClassVar[bool] = True

    def initial(self, weights: Weights, text: Text) -> Weights:
        return {"linear.weight": text(self.templates), "linear.bias": torch.zeros_like(weights["linear.bias"])}
