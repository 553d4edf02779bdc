"""Augmented sets by the name of their augmentation, one of small samples, and what a perturbation must come to."""

from collections.abc import Collection
from typing import Any

import numpy as np

from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.registry import find
from app.common.settings import make
from app.geometry.class_geometry import Geometry, geometry
from app.geometry.class_statistics import ClassStatistics, gather, merge


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


P, CLASSES = 6, 4


def site(counts: dict[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples of the classes in mixed order, with some correlation."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(list(counts), list(counts.values())))
    mixing = np.random.default_rng(99).standard_normal((P, P))
    return (3 * y[:, None] + rng.standard_normal((len(y), P)) @ mixing).astype(np.float32), y


X, Y = site({0: 30, 2: 301})


def parts() -> dict[int, ClassStatistics]:
    held = {0: {0: 30, 2: 301}, 1: {0: 20, 1: 25}, 4: {1: 40, 2: 15}}
    return {client: gather(*site(counts, client)) for client, counts in held.items()}


def shared(explained: float = 1.0) -> Geometry:
    return geometry(merge(parts().values()), explained, prototypes=parts())


def augmented(
    x: np.ndarray = X,
    y: np.ndarray = Y,
    *,
    geometry: Geometry | None = None,
    seed: int = 7,
    client: int = 0,
    classes: int = CLASSES,
    own: set[int] | None = None,
    kind: str = "ggeur",
    **changes: Any,
) -> AugmentedSet:
    known = shared() if geometry is None else geometry
    chosen = {"target": 400, **changes} if kind != "none" else {}
    return augmented_set(kind, x, y, known, classes=classes, seed=seed, client=client, own=own, **chosen)
