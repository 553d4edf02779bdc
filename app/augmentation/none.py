"""No augmentation: the client's own samples, nothing else."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .augmented_set import AugmentedSet
from .base import Augmentation


@dataclass(frozen=True)
class NoAugmentation(Augmentation):
    """Nothing is shared, and nothing is drawn."""

    name: ClassVar[str] = "none"
    control: ClassVar[bool] = True
    families: ClassVar[Collection[str]] = ("images", "eeg")
    exchanges: ClassVar[bool] = False

    def training_set(
        self,
        x: np.ndarray,
        y: np.ndarray,
        shared: Any,
        *,
        classes: int,
        seed: int,
        client: int,
        own: Collection[int] | None = None,
    ) -> AugmentedSet:
        return AugmentedSet(x, y, classes=classes, seed=seed, client=client)
