"""Linear heads in closed form, from class statistics alone: what one round can give without any training.

Each returns (weight (C, p), bias (C,)) in float64: the scores of x are ``weight @ x + bias``, and the class with the
largest is the prediction. A class that the statistics lack gets weight 0 and the bias ``ABSENT``, so that it is
never predicted.
"""

from collections.abc import Sequence

import numpy as np

from ..common.errors import FedgeoError
from .class_statistics import ClassStatistics

ABSENT = -1e9  # the bias of a class nobody holds; finite, so that a head with it can be trained on

Head = tuple[np.ndarray, np.ndarray]


def lda(stats: ClassStatistics, classes: int, shrinkage: float = 0.1) -> Head:
    """Shrunk linear discriminant analysis on merged statistics (FedCGS).

    With priors pi_c = N_c / N and the pooled within-class covariance S = sum_c pi_c Sigma_c, shrunk to
    (1 - g) S + g tr(S)/p I: weight_c = S^-1 mu_c, bias_c = -1/2 mu_c^T S^-1 mu_c + log pi_c. The scores are log
    posteriors up to a constant, so that a head that starts here is calibrated. ``stats`` must hold the TOTAL
    covariances of the classes. Raises FedgeoError for a shrinkage outside [0, 1] or a singular S.
    """
    within = np.zeros((stats.dimension, stats.dimension))
    priors = stats.counts / stats.counts.sum()
    for row, prior in enumerate(priors):
        within += prior * stats.covariance(row)
    weight = _solve(shrink(within, shrinkage), stats.means.T).T
    bias = np.log(priors) - 0.5 * np.einsum("cp,cp->c", weight, stats.means)
    return place(stats, weight, bias, classes)


def ridge(stats: ClassStatistics, classes: int, alpha: float = 1.0) -> Head:
    """Ridge regression on one-hot targets, from summed second moments (AFL, Fed3R).

    With m and y-bar the pooled means, the centred Gram matrix G = sum_c N_c (Sigma_c + mu_c mu_c^T) - N m m^T
    and cross moments N_c (mu_c - m): weight_c = (G + alpha I)^-1 N_c (mu_c - m), bias_c = N_c / N - weight_c m. The
    intercept is not penalised. Raises FedgeoError for a negative alpha or a singular system.
    """
    if not alpha >= 0:
        raise FedgeoError(f"method.alpha={alpha}: must be at least 0")
    total = stats.counts.sum()
    mean = stats.counts @ stats.means / total
    gram = np.zeros((stats.dimension, stats.dimension))
    for row, count in enumerate(stats.counts):
        offset = stats.means[row] - mean
        gram += count * (stats.covariance(row) + np.outer(offset, offset))
    gram[np.diag_indices_from(gram)] += alpha
    weight = _solve(gram, (stats.counts[:, None] * (stats.means - mean)).T).T
    bias = stats.counts / total - weight @ mean
    return place(stats, weight, bias, classes)


def means_only(parts: Sequence[ClassStatistics], merged: ClassStatistics, classes: int, shrinkage: float = 0.1) -> Head:
    """Linear discriminant analysis where only the clients' class means are shared (FedCOF).

    Where clients' samples of a class are alike, the spread of their means tells its covariance: each class's is
    estimated by sum_k n_k (mu_k - mu)(mu_k - mu)^T / (K_c - 1) over the K_c clients that hold it, which is unbiased
    then, and pooled over the classes with weights K_c - 1. Nothing but counts and means of ``parts`` is read.
    Raises FedgeoError where no class is held by two clients.
    """
    scatter = np.zeros((merged.dimension, merged.dimension))
    freedom = 0
    for row, label in enumerate(merged.classes):
        held = [(part, r) for part in parts if (r := part.row_of(int(label))) is not None]
        offsets = np.array([np.sqrt(part.counts[r]) * (part.means[r] - merged.means[row]) for part, r in held])
        scatter += offsets.T @ offsets
        freedom += len(held) - 1
    if freedom == 0:
        raise FedgeoError("method=means_only: no class is held by two clients, so their means tell no covariance")
    priors = merged.counts / merged.counts.sum()
    weight = _solve(shrink(scatter / freedom, shrinkage), merged.means.T).T
    bias = np.log(priors) - 0.5 * np.einsum("cp,cp->c", weight, merged.means)
    return place(merged, weight, bias, classes)


def shrink(covariance: np.ndarray, shrinkage: float) -> np.ndarray:
    """(1 - g) S + g tr(S)/p I: shrunk towards the sphere of equal variance. S (p, p), 0 <= g <= 1."""
    if not 0 <= shrinkage <= 1:
        raise FedgeoError(f"method.shrinkage={shrinkage}: must be between 0 and 1")
    p = len(covariance)
    shrunk = (1 - shrinkage) * covariance
    shrunk[np.diag_indices(p)] += shrinkage * np.trace(covariance) / p
    return shrunk


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    try:
        solved = np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        solved = np.full_like(right, np.nan)
    if not np.isfinite(solved).all():
        raise FedgeoError("the pooled covariance is singular: raise method.shrinkage (or method.alpha) above 0")
    return solved


def place(stats: ClassStatistics, weight: np.ndarray, bias: np.ndarray, classes: int) -> Head:
    """Rows of the classes that exist, in the places of all of them."""
    every_weight, every_bias = np.zeros((classes, stats.dimension)), np.full(classes, ABSENT)
    every_weight[stats.classes], every_bias[stats.classes] = weight, bias
    return every_weight, every_bias
