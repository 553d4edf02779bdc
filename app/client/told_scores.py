"""What is told of how good a model is at a client: true counts where they are of enough samples, else less.

A model can be made to ask one thing of one sample: whether it lies beyond a threshold. The cell of a confusion that
counts 1 is the answer, and ten such answers are a coordinate of the sample.
"""

import math

import numpy as np

from ..config.privacy import smallest_reported
from ..config.schema import Privacy


def told_confusion(confusion: np.ndarray, privacy: Privacy) -> np.ndarray:
    """int64 (C, C): a confusion whose samples by class, and so its rows' sums, are those of ``confusion``.

    What it is made of are numbers of which each is 0 or at least ``smallest_reported``: how many of a class were right
    and wrong, and as which other class. Classes for which that does not hold are pooled, and others with them until it
    holds of the pool; how many of the pool were right is dealt to its classes by their samples. Where it holds of no
    pool, the nearest number that may be told stands for the right ones. Wrong ones of which too few went to one class
    are dealt evenly. So the accuracy is true unless fewer than that were right, or wrong, in all.
    """
    least = smallest_reported(privacy)
    if least == 1:
        return confusion
    totals, right = confusion.sum(axis=1), np.diag(confusion).copy()
    pool = (totals > 0) & (_few(right, least) | _few(totals - right, least))
    smaller = np.minimum(right, totals - right)
    while pool.any():
        hits, samples = int(right[pool].sum()), int(totals[pool].sum())
        apart = np.flatnonzero((totals > 0) & ~pool)
        if not (_few(hits, least) or _few(samples - hits, least)) or not len(apart):
            right[pool] = dealt(_nearest(hits, samples, least), totals[pool])
            break
        pool[apart[smaller[apart].argmax()]] = True
    told = np.zeros_like(confusion)
    for label, own in enumerate(confusion):
        elsewhere = np.arange(len(own)) != label
        wrong = int(totals[label] - right[label])
        kept = own[elsewhere]
        if pool[label] or _few(kept, least).any():
            kept = dealt(wrong, np.ones(len(kept), dtype=np.int64))
        told[label, label], told[label, elsewhere] = right[label], kept
    return told


def told_loss(losses: np.ndarray, classes: int, privacy: Privacy) -> float:
    """The sum of ``losses``, a cross-entropy a sample, as it is told.

    Where few samples are not spoken of, none counts for more than 2 log C, and the sum is told in steps of that few
    times log C: else one sample's loss, made as large as one likes, would stand out of it.
    """
    if (least := smallest_reported(privacy)) == 1:
        return float(losses.sum())
    step = least * math.log(max(classes, 2))
    return round(float(np.minimum(losses, 2 * math.log(max(classes, 2))).sum()) / step) * step


def dealt(number: int, weights: np.ndarray) -> np.ndarray:
    """int64 (n,): ``number`` in whole parts in proportion to ``weights`` (n,), none above its weight where all fit."""
    ends = np.cumsum(weights) * number // max(int(weights.sum()), 1)
    return np.diff(ends, prepend=0)


def _few(numbers: np.ndarray | int, least: int) -> np.ndarray:
    """bool: which of the numbers are of some samples, but too few to be told."""
    return np.asarray((np.asarray(numbers) > 0) & (np.asarray(numbers) < least))


def _nearest(hits: int, samples: int, least: int) -> int:
    """The number nearest to ``hits`` that may be told of ``samples``, as many of the rest being told with it."""
    allowed = [n for n in range(samples + 1) if not (_few(n, least) or _few(samples - n, least))]
    return min(allowed, key=lambda n: (abs(n - hits), n))
