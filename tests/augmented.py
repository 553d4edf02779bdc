"""Augmented sets by the name of their augmentation, and what their perturbation must come to."""

from collections.abc import Collection
from typing import Any

import numpy as np

from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.registry import find
from app.common.settings import make


def augmented_set(
    kind: str,
    x: np.ndarray,
    y: np.ndarray,
    shared: Any = None,
    *,
    classes: int,
    seed: int = 0,
    client: int = 0,
    own: Collection[int] | None = None,
    **chosen: Any,
) -> AugmentedSet:
    """The training set of an augmentation with the settings ``chosen``; the names are those of ``training_set``."""
    augmentation = make(find(kind), "augmentation", chosen)
    return augmentation.training_set(x, y, shared, classes=classes, seed=seed, client=client, own=own).own


def expected_rms(data: AugmentedSet, scale: str = "sqrt") -> float:
    """What ``perturbation_rms`` estimates: the root of the mean of sum_m s_m^2 over the perturbed samples."""
    power = 1 if scale == "sqrt" else 2
    shaped = [(source.total, source.shape) for source in data._sources if source.shape is not None]
    variance = sum(count * float((shape.eigenvalues**power).sum()) for count, shape in shaped)
    return float(np.sqrt(variance / data.perturbed)) if data.perturbed else 0.0
