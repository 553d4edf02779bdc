"""Test samples that follow a client's own training shares, from those held out for all: ``federation.test=own``."""

import numpy as np

_OWN_TEST = (0, 5)  # a stream of the seed's own: partition.py and held_back.py have the others


def own_test(labels: np.ndarray, training: np.ndarray, seed: int, client: int) -> np.ndarray:
    """Sorted row numbers, int64 (m,): a draw without replacement in which classes are as frequent as in training.

    labels: int64 (n,), of the samples to draw from. training: int64, the client's own training labels. As many are
    drawn as can be while every class keeps its share, rounded, at least one of a class that both have; of clients whose
    draws come from the same samples some are drawn for several.
    """
    size = int(max(training.max(initial=0), labels.max(initial=0))) + 1
    held, there = np.bincount(training, minlength=size), np.bincount(labels, minlength=size)
    wanted = np.flatnonzero((held > 0) & (there > 0))
    if not len(wanted):
        return np.empty(0, dtype=np.int64)
    share = held[wanted] / held[wanted].sum()
    total = float((there[wanted] / share).min())
    drawn = np.clip(np.rint(total * share).astype(np.int64), 1, there[wanted])
    rng = np.random.default_rng([seed, *_OWN_TEST, client])
    rows = [rng.permutation(np.flatnonzero(labels == label))[:n] for label, n in zip(wanted, drawn, strict=True)]
    return np.sort(np.concatenate(rows))
