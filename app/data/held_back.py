"""What a client keeps back of its own training samples, to validate on: ``federation.validation=clients``."""

import numpy as np

_HELD_BACK = (0, 4)  # a stream of the seed's own: partition.py has the others


def held_back(labels: np.ndarray, fraction: float, seed: int, client: int) -> np.ndarray:
    """bool (n,): the samples that a client keeps back, a random share of every class that it has two or more of.

    labels: int64 (n,), of all its samples. fraction: 0 <= fraction < 1 of them, rounded over the classes together, so
    that small classes are kept back in turn; at least one sample where a class has two. One of each class stays.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    if fraction == 0:
        return chosen
    rng = np.random.default_rng([seed, *_HELD_BACK, client])
    classes, sizes = np.unique(labels, return_counts=True)
    running = np.floor(np.cumsum(np.where(sizes > 1, sizes, 0)) * fraction + rng.random())
    taken = np.minimum(np.diff(running, prepend=0).astype(np.int64), sizes - 1)
    if not taken.any() and sizes.max() > 1:
        taken[sizes.argmax()] = 1
    for label, number in zip(classes, taken, strict=True):
        chosen[rng.permutation(np.flatnonzero(labels == label))[:number]] = True
    return chosen
