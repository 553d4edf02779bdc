"""EEGNet, the paper's baseline on raw trials: temporal and spatial filters, a separable convolution.

Batch normalisation keeps two kinds of numbers. Its affine parameters are weights like any other: they are
exported and averaged. Its running statistics describe the data that the model last trained on; they stay with
the client (FedBN) as ``local_state``. The exchanged weights are therefore half a model: to predict, a client
loads them and then its own ``local_state``. Whoever has none, a new site or a saved global model's user,
calls ``calibrate`` on unlabelled trials first; until then the statistics are the initial ones, mean 0 and
variance 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..common.errors import FedgeoError
from .base import Architecture, Model, Output, Weights
from .dropout import drop

FILTERS = 16  # the paper's F2
BATCH_NORM = (
    "the running statistics stayed with the clients and are not in this file: before predicting, call calibrate() on "
    "unlabelled z-scored trials of the new recordings, which takes their own statistics"
)


class EEGNet(Model):
    """EEGNet on z-scored trials (batch, channels, samples), float32.

    rate: sampling rate in Hz. F1 temporal filters of Kt = max(round(rate / 2), 32) samples, D spatial filters
    for each, F2 outputs of the separable convolution of Ks = max(round(rate / (2 p1)), 8) samples; average
    pools p1, p2. Convolutions without bias, zero-padded to the same length.

    In training, dropout draws from ``generator``, which the training loop sets (on any device; the masks
    follow): nothing comes from torch's global state.
    """

    inputs = "trials"

    def __init__(
        self,
        channels: int,
        samples: int,
        classes: int,
        rate: float,
        F1: int = 8,
        D: int = 2,
        F2: int = FILTERS,
        pools: tuple[int, int] = (4, 8),
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        self.channels, self.samples, self.pools, self.dropout = channels, samples, pools, dropout
        steps = samples // pools[0] // pools[1]
        if steps < 1:
            raise FedgeoError(
                f"EEGNet pools {pools} leave nothing of {samples} samples: use longer trials or smaller pools"
            )
        kt, ks = max(round(0.5 * rate), 32), max(round(rate / (2 * pools[0])), 8)
        self.temporal = nn.Parameter(torch.empty(F1, kt))
        self.norm1 = nn.BatchNorm1d(F1)
        self.spatial = nn.Parameter(torch.empty(F1 * D, channels))
        self.norm2 = nn.BatchNorm1d(F1 * D)
        self.depthwise = nn.Parameter(torch.empty(F1 * D, 1, ks))
        self.pointwise = nn.Parameter(torch.empty(F2, F1 * D, 1))
        self.norm3 = nn.BatchNorm1d(F2)
        self.linear = nn.utils.skip_init(nn.Linear, F2 * steps, classes)
        self.reset(torch.Generator().manual_seed(0))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Weights uniform within 1 / sqrt(fan-in), affine parameters 1 and 0, running statistics 0 and 1."""
        weights = [self.temporal, self.spatial, self.depthwise, self.pointwise, self.linear.weight]
        fan_in = [weight[0].numel() for weight in weights]
        for parameter, inputs in zip([*weights, self.linear.bias], [*fan_in, fan_in[-1]], strict=True):
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * inputs**-0.5)
        for norm in self._norms():
            norm.reset_parameters()

    def blank_input(self) -> Tensor:
        return torch.zeros(1, self.channels, self.samples)

    def forward(self, x: Tensor) -> Output:
        """x: z-scored trials (batch, channels, samples). The representation is the last pool's output."""
        return self._forward(x, dropping=self.training)

    def _forward(self, x: Tensor, dropping: bool) -> Output:
        if x.shape[1:] != (self.channels, self.samples):
            expected = f"(batch, {self.channels}, {self.samples})"
            raise FedgeoError(f"EEGNet expects trials of shape {expected}, got {tuple(x.shape)}")
        h = self._temporal_spatial(x)
        h = self._drop(F.avg_pool1d(F.elu(self.norm2(h)), self.pools[0]), dropping)
        h = F.conv1d(_same(h, self.depthwise.shape[-1]), self.depthwise, groups=h.shape[1])
        h = self.norm3(F.conv1d(h, self.pointwise))
        h = self._drop(F.avg_pool1d(F.elu(h), self.pools[1]), dropping)
        representation = h.flatten(1)
        return Output(representation, self.linear(representation))

    def _temporal_spatial(self, x: Tensor) -> Tensor:
        """Temporal convolution, batch norm, spatial filter: (b, c, t) -> (b, F1 D, t).

        All three are linear in the signal once the norm's statistics are known, so that the spatial filter
        can go first. The temporal filters then run over F1 D signals, not over F1 times all channels (32
        times fewer at 64 channels), and the statistics of their outputs, which are never formed, follow from
        the input's: see ``_window_moments``.
        """
        f1, kt = self.temporal.shape
        norm = self.norm1
        if self.training:
            mean, second = _window_moments(x, kt)
            filters = self.temporal.double()
            centre = filters @ mean
            variance = (((filters @ second) * filters).sum(1) - centre**2).clamp(min=0)
            self._track(norm, centre.detach(), variance.detach(), x.numel())
            centre, variance = centre.to(x.dtype), variance.to(x.dtype)
        else:
            assert norm.running_mean is not None and norm.running_var is not None
            centre, variance = norm.running_mean, norm.running_var
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        shift = norm.bias - scale * centre
        d = self.spatial.shape[0] // f1
        kernels = (scale.unsqueeze(1) * self.temporal).repeat_interleave(d, 0).unsqueeze(1)
        h = F.conv1d(_same(self.spatial @ x, kt), kernels, groups=f1 * d)
        return h + (shift.repeat_interleave(d) * self.spatial.sum(1)).unsqueeze(1)

    @staticmethod
    @torch.no_grad()
    def _track(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, n: int) -> None:
        """What BatchNorm does to its running statistics in training; n values went into a mean."""
        assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
        norm.running_var.lerp_((variance * (n / (n - 1))).to(norm.running_var.dtype), norm.momentum)

    def _drop(self, x: Tensor, dropping: bool) -> Tensor:
        return drop(x, self.dropout, self.generator) if dropping else x

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Recompute all running statistics from unlabelled trials x (batch, channels, samples), as one batch.

        For global weights that meet new data: a new site, a saved model. The weights stay as they are. Some
        hundred trials are plenty; memory grows with their number.
        """
        training, momenta = self.training, [norm.momentum for norm in self._norms()]
        self.train()
        for norm in self._norms():
            norm.momentum = 1.0  # the batch's statistics replace the old ones
        self._forward(x, dropping=False)
        for norm, momentum in zip(self._norms(), momenta, strict=True):
            norm.momentum = momentum
        self.train(training)

    def local_state(self) -> Weights:
        """Copies of the batch norms' running statistics, which a client keeps for itself between rounds."""
        return {name: buffer.detach().clone() for name, buffer in self.named_buffers()}

    @torch.no_grad()
    def load_local_state(self, state: Weights) -> None:
        """Restore ``local_state``; an empty dict changes nothing. KeyError for other names."""
        buffers = dict(self.named_buffers())
        if not state:
            return
        if buffers.keys() != state.keys():
            raise KeyError(f"local state {sorted(state)} does not fit the model's {sorted(buffers)}")
        for name, buffer in buffers.items():
            buffer.copy_(state[name])

    def _norms(self) -> tuple[nn.BatchNorm1d, ...]:
        return self.norm1, self.norm2, self.norm3


@dataclass(frozen=True)
class EEGNetArchitecture(Architecture):
    """EEGNet with the paper's sizes. dropout: the share of entries that is left out in training."""

    name: ClassVar[str] = "eegnet"
    model: ClassVar[type[Model]] = EEGNet
    notes: ClassVar[Mapping[str, str]] = {"batch_norm": BATCH_NORM}

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.25

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        return FILTERS

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
        return EEGNet(inputs["channels"], inputs["samples"], classes, inputs["rate"], dropout=self.dropout)


def _same(x: Tensor, kernel: int) -> Tensor:
    """x (..., t) padded with zeros so that a convolution of this length gives t samples again."""
    return F.pad(x, ((kernel - 1) // 2, kernel // 2))


def _window_moments(x: Tensor, kernel: int) -> tuple[Tensor, Tensor]:
    """Moments of the windows w that a temporal filter sees: E[w] (k,) and E[w w^T] (k, k), float64.

    x: (b, c, t). A window is ``kernel`` successive samples of one channel, zero-padded at the ends as in
    ``_same``; there are b c t of them. A filter h then has outputs of mean h E[w] and second moment
    h E[w w^T] h. The windows are never laid out: the signals are cut into blocks of ``kernel`` window starts,
    one matrix product gives the products of all pairs of samples in a block, and the sum along its diagonals
    adds up the windows.
    """
    count, t = x.numel(), x.shape[-1]
    padded = _same(x.flatten(0, 1), kernel)
    mean = padded.sum(0).double().unfold(0, kernel, 1).sum(0) / count
    second = torch.zeros(kernel, kernel, dtype=torch.float64, device=x.device)
    whole = t - t % kernel
    for start, stop, length in ((0, whole, kernel), (whole, t, t - whole)):
        if stop > start:
            blocks = padded[:, start : stop + kernel - 1].unfold(1, length + kernel - 1, length).flatten(0, 1)
            products = (blocks.mT @ blocks).double()
            size = length + kernel - 1
            second += products.as_strided((length, kernel, kernel), (size + 1, size, 1)).sum(0)
    return mean, second / count
