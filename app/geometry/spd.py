"""SPD matrices (trial covariances): functions of their eigenvalues, and their Riemannian mean across sites."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.errors import FedgeoError

# Of the search for a Riemannian mean: near its end rounding has the last word on the curvature.
SMALLEST_STEP = 0.02


def spectral(s: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """U f(lambda) U^T of symmetric S = U diag(lambda) U^T, (..., n, n); reads the lower triangle."""
    values, vectors = torch.linalg.eigh(s)
    return (vectors * function(values).unsqueeze(-2)) @ vectors.mT


def tangent_sum(covariances: Tensor, m: Tensor) -> Tensor:
    """What a site sends for one step of the federated Riemannian mean: the sum of log(M^{-1/2} S_i M^{-1/2}).

    covariances: (n, c, c) SPD. m: (c, c) SPD, the server's current mean. Returns (c, c) float64, in the
    whitened coordinates at M that ``karcher_step`` reads. FedgeoError where a matrix is not positive
    definite.
    """
    whitening = spectral(m.to(torch.float64), torch.rsqrt)
    values, vectors = torch.linalg.eigh(whitening @ covariances.to(torch.float64) @ whitening)
    definite = values[:, 0] > torch.finfo(values.dtype).eps * values.shape[-1] * values[:, -1]
    if not bool(definite.all()):
        raise FedgeoError(
            f"covariance {int(definite.int().argmin())} of {len(definite)} is not positive definite, and has "
            "no logarithm: use a shrinkage estimator (oas, lwf), or drop a channel where an average "
            "reference cost one rank"
        )
    return ((vectors * values.log().unsqueeze(-2)) @ vectors.mT).sum(0)


@dataclass(frozen=True)
class KarcherMean:
    """Where the server's search for the Riemannian mean stands.

    Begin with ``KarcherMean(the pooled arithmetic mean)``. point: (c, c), the current mean M. norm: the
    Frobenius norm of the gradient at the point before, 0 at the mean; below 1e-6 the search has ended for
    practical purposes. step, gradient: what the next step needs to know of the last.
    """

    point: Tensor
    norm: float = math.inf
    step: float = 1.0
    gradient: Tensor | None = None


def karcher_step(mean: KarcherMean, sums: Sequence[Tensor], counts: Sequence[int]) -> KarcherMean:
    """One step towards the Riemannian mean of all sites' covariances: M <- M^{1/2} exp(step J) M^{1/2}.

    sums: each site's ``tangent_sum`` at ``mean.point``; counts: how many covariances each summed. J is their
    pooled mean. A step of 1 overshoots for ever on EEG of several subjects, so that the step is adapted as
    Barzilai and Borwein do, from the change of J: about 20 rounds to 1e-10. The cost is strongly convex, with
    curvature at least 1, hence a step of at most 1.
    """
    if len(sums) != len(counts) or not all(n > 0 for n in counts):
        raise FedgeoError(
            f"{len(sums)} sums of tangent vectors came with counts {list(counts)}: one positive count each"
        )
    gradient = torch.stack(list(sums)).to(torch.float64).sum(0) / sum(counts)
    step = mean.step
    if mean.gradient is not None:
        change = float((mean.gradient * (mean.gradient - gradient)).sum())
        step = step * float(mean.gradient.square().sum()) / change if change > 0 else 1.0
        step = min(max(step, SMALLEST_STEP), 1.0)
    root = spectral(mean.point.to(torch.float64), torch.sqrt)
    moved = root @ spectral(step * gradient, torch.exp) @ root
    return KarcherMean(0.5 * (moved + moved.mT), float(torch.linalg.matrix_norm(gradient)), step, gradient)
