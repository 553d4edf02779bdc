"""SPDnet: BiRe blocks (BiMap + ReEig), LogEig, a linear classifier, on SPD matrices in float64.

The Stiefel weights are trained by local trivialisation: a round begins at the received W0, the optimiser
moves a free parameter X from 0, and the weight is W = uf(W0 + P_{W0}(X)). The last ReEig and the LogEig are
one function, log(max(epsilon, .)), and share one eigendecomposition.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..common.errors import FedgeoError
from ..config.schema import Positive, Rate
from ..geometry.stiefel import distance_to_stiefel, project, random_stiefel, retract
from .base import Architecture, Model, Output, Weights

VECTORISATIONS = ("vec", "vech")
# Received weights may have travelled in single precision; a plain mean of several clients' is further off.
OFF_MANIFOLD = 1e-4
WIDEST = 32  # what model.hidden=auto takes where the covariances have that rank
MOST_CLAMPED = 0.5  # the share of eigenvalues above which a person should look at the unit and at epsilon


class _BiMap(torch.autograd.Function):
    """W^T S W for symmetric S. The backward pass reuses W^T S, which autograd would multiply out again.

    s: (batch, p, p) with w: (p, k), or (m, batch, p, p) with (m, p, k). The orders of the products are the
    fast ones: one tall product a w rather than many small ones, the narrow matrix on the left, and bmm where
    matmul would copy s to fold it.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, w: Tensor) -> Tensor:
        p, k = w.shape[-2:]
        wt = w.mT.contiguous()
        left = wt.unsqueeze(-3).expand(*s.shape[:-2], k, p)
        wts = torch.bmm(left.reshape(-1, k, p), s.reshape(-1, p, p)).view(*s.shape[:-3], -1, p)
        ctx.save_for_backward(wts, w)
        return (wt @ wts.mT).unflatten(-1, (-1, k)).transpose(-3, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        (g,) = grads
        wts, w = ctx.saved_tensors
        both = g + g.mT
        grad_w = (both.reshape(*g.shape[:-3], -1, g.shape[-1]).mT @ wts).mT
        if not ctx.needs_input_grad[0]:
            return None, grad_w
        outer = w.unsqueeze(-3)
        return outer @ (0.5 * both) @ outer.mT, grad_w


class _Spectral(torch.autograd.Function):
    """U f(lambda) U^T with f = max(epsilon, .) or log(max(epsilon, .)), and the Daleckii-Krein backward.

    The backward multiplies, in the eigenbasis, by the divided differences (f_i - f_j) / (lambda_i -
    lambda_j), which autograd through eigh evaluates as 0/0 where eigenvalues meet. Here each is computed from
    its own pair of eigenvalues without cancellation, so that it needs no tolerance, and a large trial cannot
    change what its neighbours in the batch get.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, epsilon: float, logarithm: bool) -> Tensor:
        values, vectors = torch.linalg.eigh(s)
        ctx.save_for_backward(values, vectors)
        ctx.epsilon, ctx.logarithm = epsilon, logarithm
        image = values.clamp(min=epsilon)
        return (vectors * (image.log() if logarithm else image).unsqueeze(-2)) @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (g,) = grads
        values, vectors = ctx.saved_tensors
        inner = (vectors.mT @ (g + g.mT) @ vectors).mul_(0.5)
        # the chain rule of divided differences: (log o max)[a, b] = log[max a, max b] * max[a, b]
        if ctx.logarithm:
            inner *= _log_differences(values.clamp(min=ctx.epsilon))
        if bool((values[..., 0] <= ctx.epsilon).any()):  # else all of max's differences are 1
            inner *= _rectified_differences(values, ctx.epsilon)
        return vectors @ inner @ vectors.mT, None, None


def _rectified_differences(values: Tensor, epsilon: float) -> Tensor:
    """Divided differences (..., k, k) of max(epsilon, .): 1 where both exceed epsilon, 0 where none does."""
    image = values.clamp(min=epsilon)
    gap = values.unsqueeze(-1) - values.unsqueeze(-2)
    active = (values > epsilon).to(values.dtype).unsqueeze(-1)
    return torch.where(gap == 0, active, (image.unsqueeze(-1) - image.unsqueeze(-2)) / gap)


def _log_differences(values: Tensor) -> Tensor:
    """Divided differences (..., k, k) of log at positive values.

    With r = |a - b| / min(a, b) it is log1p(r) / r / min(a, b), at full precision however close the pair; a
    smallest r stands for 0, where log1p(r) / r is 1.
    """
    low = torch.minimum(values.unsqueeze(-1), values.unsqueeze(-2))
    ratio = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs_().div_(low).clamp_(min=1e-300)
    return torch.log1p(ratio).div_(ratio).div_(low)


def bimap(s: Tensor, w: Tensor) -> Tensor:
    """BiMap, W^T S W. s symmetric, (p, p) or (b, p, p), with w (p, k); or (m, b, p, p) with (m, p, k)."""
    return _BiMap.apply(s, w) if s.dim() > 2 else _BiMap.apply(s.unsqueeze(0), w).squeeze(0)


def re_eig(s: Tensor, epsilon: float) -> Tensor:
    """ReEig, U max(epsilon, lambda) U^T of symmetric s (..., k, k). At epsilon the derivative counts as 0."""
    return _Spectral.apply(s, epsilon, False)


def re_log_eig(s: Tensor, epsilon: float) -> Tensor:
    """ReEig then LogEig, U log(max(epsilon, lambda)) U^T of symmetric s (..., k, k), as one function."""
    return _Spectral.apply(s, epsilon, True)


class StiefelBiMap(nn.Module):
    """A BiMap weight on St(p, k): the buffer ``received`` is W0, the parameter ``tangent`` is X."""

    received: Tensor

    def __init__(self, p: int, k: int) -> None:
        super().__init__()
        self.register_buffer("received", torch.empty(p, k, dtype=torch.float64))
        self.tangent = nn.Parameter(torch.empty(p, k, dtype=torch.float64))

    def weight(self) -> Tensor:
        return retract(self.received, project(self.received, self.tangent))

    @torch.no_grad()
    def start_at(self, w: Tensor) -> None:
        self.received.copy_(w)
        self.tangent.zero_()


class FreeBiMap(nn.Module):
    """A BiMap weight that is an unconstrained matrix, as plain FedAvg without the projection needs it."""

    def __init__(self, p: int, k: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(p, k, dtype=torch.float64))

    def weight(self) -> Tensor:
        return self.matrix

    @torch.no_grad()
    def start_at(self, w: Tensor) -> None:
        self.matrix.copy_(w)


class SPDNet(Model):
    """SPDnet on covariances (..., channels, channels), float64.

    hidden: the width after each BiRe block, not increasing. epsilon: ReEig's threshold, in the unit of the
    covariances (microvolt^2, or 1 after recentring). vectorise: ``vec`` feeds all d^2 entries to the
    classifier, as the paper's parameter counts do; ``vech`` feeds the lower triangle with off-diagonal
    entries times sqrt 2, which keeps norms.

    Exchanged weights: ``stiefel.0``, ... (the matrices W, not the optimiser's X), ``linear.weight``,
    ``linear.bias``. Averaging X instead of W would be wrong, so that X goes by another name
    (``stiefel.0.tangent``) and is never exported. With ``stiefel=False`` the BiMap weights are free matrices,
    exchanged as ``bimap.0.matrix``: the control without manifold.

    The forward pass also takes stacked parameters (m, ...) through ``torch.func.functional_call``, with
    x (m, batch, c, c).
    """

    inputs = "covariances"

    _triangle: Tensor
    _isometry: Tensor

    def __init__(
        self,
        channels: int,
        hidden: Sequence[int],
        classes: int,
        epsilon: float,
        vectorise: str = "vec",
        stiefel: bool = True,
    ) -> None:
        super().__init__()
        widths = [channels, *hidden]
        if not hidden or any(not 1 <= k <= p for p, k in pairwise(widths)):
            fits = sorted({min(max(k, 1), channels) for k in hidden}, reverse=True) or [min(channels, WIDEST)]
            raise FedgeoError(
                f"SPDnet widths {list(hidden)}: expected at least one, none above the one before it, the "
                f"first not above {channels} channels: set model.hidden, such as {fits}, or auto"
            )
        if not (epsilon > 0 and math.isfinite(epsilon)):
            raise FedgeoError(f"SPDnet epsilon must be positive, got {epsilon}")
        if vectorise not in VECTORISATIONS:
            raise FedgeoError(f"vectorise={vectorise!r} is not known: choose one of {', '.join(VECTORISATIONS)}")
        self.channels, self.epsilon = channels, float(epsilon)
        self.vectorise, self.on_manifold = vectorise, stiefel
        # the name decides how the entries are averaged, and that weight decay leaves them alone
        block, self._name = (StiefelBiMap, "stiefel") if stiefel else (FreeBiMap, "bimap")
        self.add_module(self._name, nn.ModuleList(block(p, k) for p, k in pairwise(widths)))
        d = widths[-1]
        features = d * d if vectorise == "vec" else d * (d + 1) // 2
        self.linear = nn.utils.skip_init(nn.Linear, features, classes, dtype=torch.float64)
        rows, columns = torch.tril_indices(d, d)
        isometry = torch.full(rows.shape, 2.0, dtype=torch.float64).sqrt().masked_fill(rows == columns, 1.0)
        self.register_buffer("_triangle", rows * d + columns, persistent=False)
        self.register_buffer("_isometry", isometry, persistent=False)
        self.reset(torch.Generator().manual_seed(0))

    def blank_input(self) -> Tensor:
        return torch.eye(self.channels, dtype=torch.float64)[None]

    @property
    def blocks(self) -> Sequence[StiefelBiMap | FreeBiMap]:
        """The BiMap layers, first to last."""
        return cast(Sequence[StiefelBiMap | FreeBiMap], self.get_submodule(self._name))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """BiMap weights uniform on the Stiefel manifold; the classifier uniform within 1 / sqrt(features)."""
        for block in self.blocks:
            p, k = self._shape(block)
            block.start_at(random_stiefel(p, k, generator))
        bound = self.linear.in_features**-0.5
        for parameter in (self.linear.weight, self.linear.bias):
            draw = torch.rand(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_((2 * draw - 1) * bound)

    def forward(self, x: Tensor) -> Output:
        """x: covariances (..., c, c), float64. The representation: the last block's logarithm as a vector."""
        if x.dtype != torch.float64:
            raise FedgeoError(f"SPDnet needs covariances in float64, got {str(x.dtype).removeprefix('torch.')}")
        if x.shape[-2:] != (self.channels, self.channels):
            raise FedgeoError(f"SPDnet expects covariances of {self.channels} channels, got shape {tuple(x.shape)}")
        s = x
        for i, block in enumerate(self.blocks):
            s = bimap(s, block.weight())
            if not math.isfinite(float(s.detach().sum())):
                raise FedgeoError(
                    f"SPDnet block {i} gave values that are not finite: check the covariances and the learning rate"
                )
            s = re_eig(s, self.epsilon) if i + 1 < len(self.blocks) else re_log_eig(s, self.epsilon)
        representation = s.flatten(-2)
        if self.vectorise == "vech":
            representation = representation[..., self._triangle] * self._isometry
        weight, bias = self.linear.weight, self.linear.bias
        logits = representation @ weight.mT + (bias if bias.dim() == 1 else bias.unsqueeze(-2))
        return Output(representation, logits)

    @torch.no_grad()
    def clamped_fraction(self, x: Tensor) -> float:
        """The share of the first block's eigenvalues at or below epsilon, over covariances x (..., c, c).

        Above one half, suspect the unit: in volt^2 every eigenvalue is clamped, and nothing can be learned.
        Deeper blocks inherit clamped eigenvalues, so that the first tells about the data.
        """
        values = torch.linalg.eigvalsh(bimap(x, self.blocks[0].weight()))
        return float((values <= self.epsilon).double().mean())

    def export(self) -> Weights:
        if not self.on_manifold:
            return super().export()
        with torch.no_grad():
            weights = {f"stiefel.{i}": block.weight().clone() for i, block in enumerate(self.blocks)}
        return weights | {f"linear.{name}": p.detach().clone() for name, p in self.linear.named_parameters()}

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take the exchanged weights over, and start the round there, with X = 0.

        KeyError or ValueError for wrong names or shapes; FedgeoError for a matrix off the manifold.
        """
        if not self.on_manifold:
            super().load(weights)
            return
        names = [f"stiefel.{i}" for i in range(len(self.blocks))]
        shapes = dict(zip(names, map(self._shape, self.blocks), strict=True))
        shapes |= {f"linear.{name}": tuple(p.shape) for name, p in self.linear.named_parameters()}
        if shapes.keys() != weights.keys():
            raise KeyError(f"weights {sorted(weights)} do not fit the model's {sorted(shapes)}")
        for name, shape in shapes.items():
            if tuple(weights[name].shape) != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {tuple(weights[name].shape)}")
        for name in names:
            distance = distance_to_stiefel(weights[name].double())
            if not distance <= OFF_MANIFOLD:
                raise FedgeoError(
                    f"{name}: off the Stiefel manifold by {distance:.1e}; average it by projavg or rlavg, or "
                    "build SPDnet with stiefel=False for plain averaging"
                )
        for name, block in zip(names, self.blocks, strict=True):
            block.start_at(weights[name])
        for name, p in self.linear.named_parameters():
            p.copy_(weights[f"linear.{name}"])

    @staticmethod
    def _shape(block: nn.Module) -> tuple[int, ...]:
        return tuple(next(block.parameters()).shape)


@dataclass(frozen=True)
class SPDNetArchitecture(Architecture):
    """hidden: one width a BiRe block; ``auto`` is one block of 32, or of the covariances' rank where that is less.

    epsilon, vectorise: see ``SPDNet``.
    """

    name: ClassVar[str] = "spdnet"
    model: ClassVar[type[Model]] = SPDNet

    hidden: Annotated[list[Positive], Field(min_length=1)] | Literal["auto"] = field(default_factory=lambda: [18])
    epsilon: Rate = 1e-2
    vectorise: Literal["vec", "vech"] = "vec"

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        return max(self._widths(inputs))

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> SPDNet:
        widths = self._widths(inputs)
        return SPDNet(inputs["channels"], widths, classes, self.epsilon, self.vectorise, stiefel=stiefel)

    def _widths(self, inputs: Mapping[str, Any]) -> list[int]:
        if self.hidden == "auto":
            return [min(WIDEST, inputs.get("rank", inputs["channels"]))]
        return self.hidden

    def warning(self, row: Mapping[str, Any]) -> str | None:
        share = row.get("clamped_fraction", 0.0)
        if share <= MOST_CLAMPED:
            return None
        return (
            f"ReEig clamps {100 * share:.0f} % of the eigenvalues, where nothing is learned: check that the recordings "
            f"are in microvolt, or lower model.epsilon={self.epsilon:g}"
        )
