"""Augmented samples, drawn in blocks along a shape that is decomposed once, against one decomposition a sample."""

import time

import numpy as np

from app.augmentation.augmented_set import BLOCK, AugmentedSet
from app.augmentation.sources import FILL, Filling
from app.geometry.class_geometry import geometry, shape
from app.geometry.class_statistics import gather, merge
from scripts.benchmarks.pair import Pair

SAMPLES, DIMENSION, DECOMPOSED, SEED = 2000, 512, 4, 1


def augment() -> list[Pair]:
    """A class's samples round one anchor. The reference decomposes the covariance for each, and does four of them."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((DIMENSION, DIMENSION)) / DIMENSION**0.5
    x = (rng.standard_normal((2 * DIMENSION, DIMENSION)) @ mix).astype(np.float32)
    parts = gather(x, np.zeros(len(x), dtype=np.int64))
    covariance = parts.covariance(0)
    shapes = geometry(merge([parts]), explained=1.0)
    filling = Filling(target=SAMPLES + 1)

    def ours() -> np.ndarray:
        anchor, label = x[:1], np.zeros(1, dtype=np.int64)
        made = AugmentedSet(anchor, label, filling, shapes, classes=1, seed=SEED, client=0)
        return made.materialise()[0].numpy()[1:]

    def a_decomposition_a_sample() -> np.ndarray:
        drawn = np.empty((DECOMPOSED, DIMENSION), dtype=np.float32)
        noise = np.random.default_rng([SEED, 0, 0, FILL, 0]).standard_normal((BLOCK, DIMENSION), dtype=np.float32)
        for i in range(DECOMPOSED):
            found = shape(covariance, explained=1.0)
            drawn[i] = x[0] + (noise[i] * np.sqrt(found.eigenvalues)) @ found.eigenvectors.T
        return drawn

    def agree() -> None:
        np.testing.assert_allclose(ours()[:DECOMPOSED], a_decomposition_a_sample(), rtol=1e-4, atol=1e-5)

    return [
        Pair(
            f"{SAMPLES} samples of {DIMENSION} dimensions, full rank; against one decomposition a sample, "
            f"{DECOMPOSED} of them counted {SAMPLES // DECOMPOSED} times; CPU seconds",
            lambda: ours,
            lambda: a_decomposition_a_sample,
            agree,
            pairs=7,
            warm_up=1,
            clock=time.process_time,
            share=DECOMPOSED / SAMPLES,
        )
    ]
