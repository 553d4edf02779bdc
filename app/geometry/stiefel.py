"""The two manifolds of FedSPDnet: Stiefel (BiMap weights) and SPD matrices (covariances).

St(p, k) is the set of p x k matrices with orthonormal columns, with the Euclidean metric. Equation numbers
are those of the FedSPDnet paper. Everything computes in float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.errors import FedgeoError

# A mean of orthonormal matrices shrinks where they disagree: its singular values are 1 where all agree and 0
# where they cancel. Below this the clients have cancelled out, and what is left means nothing.
RANK_LOSS = 1e-3


class _PolarFactor(torch.autograd.Function):
    """A -> P = A (A^T A)^{-1/2} with its exact adjoint.

    With A = U diag(s) V^T, H = (A^T A)^{1/2} and incoming gradient G, the adjoint is
    (I - P P^T) G H^{-1} + P Y, where H Y + Y H = P^T G - G^T P; the backward pass writes it in the bases U
    and V, where H is diagonal. Autograd through the SVD divides by differences of squared singular values. In
    a local trivialisation these are all 1 at the first step, which gives NaN; this adjoint divides by sums.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, name: str) -> Tensor:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        if bool((s[..., -1] <= torch.finfo(a.dtype).eps * a.shape[-2] * s[..., 0]).any()):
            raise FedgeoError(f"{name}: has not full column rank, so it has no orthogonal polar factor")
        ctx.save_for_backward(u, s, vh)
        return u @ vh

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        u, s, vh = ctx.saved_tensors
        column, row = s.unsqueeze(-1), s.unsqueeze(-2)
        gv = grads[0] @ vh.mT
        b = u.mT @ gv  # V^T P^T G V
        return (gv / row + u @ ((b - b.mT) / (column + row) - b / row)) @ vh, None


def uf(a: Tensor, name: str = "matrix") -> Tensor:
    """The orthogonal factor of the polar decomposition, A (A^T A)^{-1/2}: the nearest point of St(p, k).

    a: (..., p, k), p >= k. Returns the same shape and dtype, differentiable once. FedgeoError, with ``name``,
    where A lacks full column rank (the factor is not unique).
    """
    return _PolarFactor.apply(a, name)


def project(w: Tensor, x: Tensor) -> Tensor:
    """(1) The orthogonal projection P_W(X) of X onto the tangent space at W. Shapes (..., p, k)."""
    wtx = w.mT @ x
    return x - 0.5 * (w @ (wtx + wtx.mT))


def retract(w: Tensor, x: Tensor, name: str = "matrix") -> Tensor:
    """(2) The retraction R_W(X) = uf(W + X) of a tangent vector X at W. Shapes (..., p, k)."""
    return uf(w + x, name)


def lift(w: Tensor, v: Tensor) -> Tensor:
    """(10) The lifting L_W(V) = P_W(V - W) of a point V into the tangent space at W. Shapes (..., p, k)."""
    return project(w, v - w)


def distance_to_stiefel(w: Tensor) -> float:
    """How far W (..., p, k) is from St(p, k): the Frobenius norm of W^T W - I, the largest of the batch."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return float(torch.linalg.matrix_norm(w.mT @ w - eye).max())


def random_stiefel(p: int, k: int, generator: torch.Generator) -> Tensor:
    """A uniformly (Haar) drawn point of St(p, k), float64: the polar factor of a Gaussian matrix."""
    if not 1 <= k <= p:
        raise FedgeoError(f"no {p} x {k} matrix has {k} orthonormal columns: the width must be between 1 and {p}")
    return uf(torch.randn(p, k, dtype=torch.float64, generator=generator))


def proj_avg(ws: Sequence[Tensor] | Tensor, weights: Sequence[float] | None = None, name: str = "matrix") -> Tensor:
    """(7) ProjAvg: the arithmetic mean of points of St(p, k), put back on the manifold by ``uf``.

    ws: the clients' (p, k) matrices, stacked or in a sequence. weights: one a client, not negative, equal if
    None. Returns (p, k) float64. FedgeoError naming the layer ``name`` where the mean is near rank loss or a
    matrix is not finite.
    """
    return uf(_mean(ws, weights, name), name)


def rl_avg(
    w_t: Tensor, ws: Sequence[Tensor] | Tensor, weights: Sequence[float] | None = None, name: str = "matrix"
) -> Tensor:
    """(11) RLAvg: retract at the previous global W_t the mean of the clients' matrices lifted there.

    w_t: (p, k), the matrix that the clients started from. ws, weights, name and errors as in ``proj_avg``.
    The lifting is linear in V - W_t, so that the mean of the liftings is the lifting of the mean.
    """
    w_t = w_t.to(torch.float64)
    return retract(w_t, lift(w_t, _mean(ws, weights, name)), name)


def _mean(ws: Sequence[Tensor] | Tensor, weights: Sequence[float] | None, name: str) -> Tensor:
    """The weighted mean of the matrices, float64, refused where its polar factor would be meaningless."""
    stacked = torch.stack(list(ws)).to(torch.float64)
    finite = torch.isfinite(stacked).flatten(1).all(1)
    if not bool(finite.all()):
        raise FedgeoError(
            f"{name}: matrix {int(finite.int().argmin())} of {len(stacked)} holds a value that is not finite"
        )
    shares = torch.as_tensor([1.0] * len(stacked) if weights is None else weights, dtype=torch.float64)
    fit = shares.shape == (len(stacked),) and bool((shares >= 0).all())
    if not fit or not 0 < float(shares.sum()) < math.inf:
        raise FedgeoError(
            f"{name}: expected {len(stacked)} weights, none negative and not all 0, got {shares.tolist()}"
        )
    mean = torch.tensordot((shares / shares.sum()).to(stacked.device), stacked, dims=1)
    smallest = float(torch.linalg.svdvals(mean)[-1])
    if smallest < RANK_LOSS:
        raise FedgeoError(
            f"{name}: the clients' matrices cancel out (smallest singular value of their mean "
            f"{smallest:.1e}, at least {RANK_LOSS:g} is needed): let all clients start from the same "
            "weights, or train fewer local steps a round"
        )
    return mean
