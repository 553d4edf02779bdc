"""Class statistics as plain sums over samples, in one vector of known length: what can be added without being seen.

n_c = sum 1,    s_c = sum x,    S = sum x x^T    over the samples x of class c, or S over those of all classes
"""

from collections.abc import Collection

import numpy as np

from .class_statistics import TRIANGLE, ClassStatistics


def sums_length(classes: int, dimension: int, by_class: bool) -> int:
    """How many numbers ``to_sums`` gives."""
    triangle = dimension * (dimension + 1) // 2
    return classes * (1 + dimension) + triangle * (classes if by_class else 1)


def to_sums(stats: ClassStatistics, classes: int, labels: Collection[int], by_class: bool) -> np.ndarray:
    """float64 (``sums_length``,): n_c of each class, s_c (C, p), and S as upper triangles row by row.

    classes: C, how many there are in all; of classes that ``stats`` lacks, or that are not in ``labels``, all is zero.
    by_class: whether S is of each class, else of all of them together, which is what pooled covariances need.
    """
    p = stats.dimension
    upper = np.triu_indices(p)
    counts, sums = np.zeros(classes), np.zeros((classes, p))
    moments = np.zeros((classes if by_class else 1, len(upper[0])))
    for row, label in enumerate(stats.classes):
        if int(label) not in labels:
            continue
        count, mean = float(stats.counts[row]), stats.means[row]
        counts[label], sums[label] = count, count * mean
        moments[label if by_class else 0] += count * (stats.covariance(row)[upper] + mean[upper[0]] * mean[upper[1]])
    return np.concatenate([counts, sums.reshape(-1), moments.reshape(-1)])


def from_sums(total: np.ndarray, classes: int, dimension: int, by_class: bool) -> ClassStatistics:
    """The statistics of all samples together, from the sum of what ``to_sums`` gave each client.

    Sigma_c = S_c / n_c - mu_c mu_c^T. Where S is of all classes together, every class has the pooled covariance
    (S - sum_c n_c mu_c mu_c^T) / n: whatever needs no more than sum_c n_c Sigma_c has the same of it.
    """
    p = dimension
    upper = np.triu_indices(p)
    counts, sums, moments = np.split(total, [classes, classes * (1 + p)])
    labels = np.flatnonzero(np.rint(counts) > 0)
    counts = counts[labels]
    means = sums.reshape(classes, p)[labels] / counts[:, None]
    squares = means[:, upper[0]] * means[:, upper[1]]
    if by_class:
        triangles = moments.reshape(classes, -1)[labels] / counts[:, None] - squares
    else:
        pooled = (moments - counts @ squares) / counts.sum() if len(labels) else moments
        triangles = np.broadcast_to(pooled, (len(labels), len(pooled)))
    ranks = np.full(len(labels), TRIANGLE, dtype=np.int64)
    rounded = np.rint(counts).astype(np.int64)
    return ClassStatistics(labels.astype(np.int64), rounded, means, ranks, triangles, np.empty((0, p)))
