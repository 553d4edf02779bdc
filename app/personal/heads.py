"""Linear heads as log-posteriors: another prior, a temperature, the mean of two, and LDA of a client's own samples.

A head's logits W x + b are log-posteriors up to a constant a sample, so that what follows is a head again.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..geometry.closed_form import ABSENT
from ..models.base import Weights

WEIGHT, BIAS = "linear.weight", "linear.bias"
SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
FOLDS = 5


def is_head(weights: Weights) -> bool:
    """Whether these are the weights of one linear layer on embeddings."""
    return weights.keys() == {WEIGHT, BIAS}


def shares(counts: np.ndarray, smoothing: float) -> np.ndarray:
    """Class shares (C,) from counts (C,), each with ``smoothing`` added (Laplace), so that none is 0."""
    smoothed = np.asarray(counts, dtype=np.float64) + smoothing
    return np.asarray(smoothed / smoothed.sum())


def with_prior(head: Weights, own: np.ndarray, trained: np.ndarray) -> Weights:
    """The head for a client whose classes have the shares ``own``, where it was trained under ``trained``, (C,) each.

    log p(c | x, own) = log p(c | x, trained) + log own_c - log trained_c + a constant
    """
    shift = torch.from_numpy(np.log(own) - np.log(trained))
    return {WEIGHT: head[WEIGHT], BIAS: (head[BIAS].double() + shift).to(head[BIAS].dtype)}


def tempered(head: Weights, x: Tensor, y: Tensor) -> Weights:
    """The head with its logits divided by the T that makes these samples likeliest: scores become log-posteriors.

    x: (n, p). y: int64 (n,).
    """
    from scipy.optimize import minimize_scalar  # for scores of ridge alone: it takes half a second to import

    logits = (x.double() @ head[WEIGHT].double().T + head[BIAS].double()).detach()

    def loss(log_t: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log_t), y))

    t = float(np.exp(minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded").x))
    return {name: (value.double() / t).to(value.dtype) for name, value in head.items()}


def ensemble(heads: Sequence[Weights]) -> Weights:
    """The head whose log-posteriors are the mean of theirs."""
    return {name: torch.stack([head[name].double() for head in heads]).mean(0).float() for name in heads[0]}


def own_lda(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Weights:
    """LDA of these samples alone, its shrinkage by cross-validation. x: (n, p). y: int64 (n,).

    With a class of one sample, or one class, there is nothing to validate on: the strongest shrinkage is taken.
    """
    x, folds = x.astype(np.float64), _folds(y, seed)
    parts = [folds == k for k in np.unique(folds)]
    losses = np.zeros(len(SHRINKAGES))
    for part in parts if len(parts) > 1 else ():
        fitted = LDAPath(x[~part], y[~part], classes)
        losses += [_loss(*fitted.head(shrinkage), x[part], y[part]) for shrinkage in SHRINKAGES]
    shrinkage = SHRINKAGES[int(np.argmin(losses))] if len(parts) > 1 else SHRINKAGES[-1]
    weight, bias = LDAPath(x, y, classes).head(shrinkage)
    return {WEIGHT: torch.from_numpy(weight).float(), BIAS: torch.from_numpy(bias).float()}


class LDAPath:
    """``closed_form.lda`` of samples for any shrinkage g above 0, from one eigendecomposition of the smaller side.

    With S = V diag(l) V^T, the pooled within-class covariance, and t = tr(S) / p,
    ((1 - g) S + g t I)^-1 = V diag(1 / ((1 - g) l + g t) - 1 / (g t)) V^T + I / (g t).
    x: float64 (n, p). y: int64 (n,).
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, classes: int) -> None:
        self.labels, self.classes, (n, p) = np.unique(y), classes, x.shape
        self.means = np.stack([x[y == label].mean(axis=0) for label in self.labels])
        self.priors = np.array([(y == label).mean() for label in self.labels])
        centred = x - self.means[np.searchsorted(self.labels, y)]
        if n < p:
            values, vectors = np.linalg.eigh(centred @ centred.T / n)
            kept = values > values[-1] * 1e-12
            self.values = values[kept]
            self.vectors = centred.T @ vectors[:, kept] / np.sqrt(n * self.values)
        else:
            self.values, self.vectors = np.linalg.eigh(centred.T @ centred / n)
        self.mean_value = float(np.square(centred).sum() / n / p) or 1.0  # of samples that are all alike, any
        self.projected = self.means @ self.vectors

    def head(self, shrinkage: float) -> tuple[np.ndarray, np.ndarray]:
        """weight (C, p) and bias (C,), float64."""
        rest = 1 / (shrinkage * self.mean_value)
        inner = 1 / ((1 - shrinkage) * self.values + shrinkage * self.mean_value) - rest
        weight = (self.projected * inner) @ self.vectors.T + rest * self.means
        bias = np.log(self.priors) - 0.5 * np.einsum("cp,cp->c", weight, self.means)
        every, all_biases = np.zeros((self.classes, weight.shape[1])), np.full(self.classes, ABSENT)
        every[self.labels], all_biases[self.labels] = weight, bias
        return every, all_biases


def _loss(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Summed cross-entropy; of a class that the head does not know as of one that is all but impossible."""
    logits = torch.from_numpy(x @ weight.T + bias)
    return float(-F.log_softmax(logits, dim=1)[torch.arange(len(y)), torch.from_numpy(y)].clamp(min=-20).sum())


def _folds(y: np.ndarray, seed: int) -> np.ndarray:
    """The fold of each sample, int (n,), classes shared out evenly; all 0 where no class has two samples."""
    rng, folds = np.random.default_rng(seed), np.zeros(len(y), dtype=np.int64)
    start = 0
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        folds[rows] = (start + np.arange(len(rows))) % FOLDS
        start += len(rows)
    return folds if np.unique(y, return_counts=True)[1].max() > 1 else np.zeros_like(folds)
