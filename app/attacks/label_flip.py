"""Wrong labels: of C classes, class c is called C - 1 - c. All else is done honestly with them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .base import Attack, Changed, Times


@dataclass(frozen=True)
class LabelFlip(Attack):
    """counts: times as many samples as it has, that a hostile client says it has."""

    name: ClassVar[str] = "label_flip"
    changes: ClassVar[Changed] = "labels"

    counts: Times = 1

    @property
    def claimed(self) -> int:
        return self.counts

    def labels(self, y: np.ndarray, classes: int) -> np.ndarray:
        return classes - 1 - y
