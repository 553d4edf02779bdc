"""The steps of several clients' linear heads, stacked: for methods with an objective or a direction of their own.

The K clients of a chunk keep their weights stacked, (K, C, p), and take their steps together: each its own batch, in
the order that the plain loop would draw it, all of them in one batched product. A batch that is short, the last of an
epoch, is filled up with its first row at weight zero; a client with fewer steps than the others drops out when it
has made them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithms.base import Algorithm, Local
from ..models.base import Output, Weights
from .cohort_client import BIAS, WEIGHT, CohortClient, TrainedClient, runs
from .plain import LocalSettings


def descend(
    members: Sequence[CohortClient],
    velocities: Sequence[Weights],
    steps: Sequence[int],
    algorithm: Algorithm,
    settings: LocalSettings,
    device: str,
) -> list[TrainedClient]:
    """Take every member's ``steps``, which do not grow from one member to the next; they share ``Local.auxiliary``.

    On ``device="cuda"`` samples and weights stay there for the whole round; the order of the samples goes there,
    nothing comes back before the end. That path is untested.
    """
    there = torch.device(device)
    start = _stacked([member.local.start for member in members], there)
    state = _stacked([member.local.state for member in members], there)
    auxiliary = {name: value.to(there) for name, value in members[0].local.auxiliary.items()}
    weights = {name: value.clone() for name, value in start.items()}
    velocity = _stacked(velocities, there)
    losses = torch.zeros(len(members), dtype=torch.float64, device=there)
    batches = _Batches(members, settings, there)
    done = 0
    while done < steps[0]:
        active = sum(n > done for n in steps)  # those that still have steps to make are the first ones
        at = _Views(
            _first(weights, active),
            _first(velocity, active),
            Local(_first(start, active), auxiliary, _first(state, active)),
        )
        for _ in range(steps[active - 1] - done):  # until the next one drops out
            losses[:active] += _step(at, *batches.next(active), algorithm, settings)
        done = steps[active - 1]
    ends = zip(_apart(weights, len(members)), _apart(velocity, len(members)), losses.tolist(), strict=True)
    return [TrainedClient(*end) for end in ends]


@dataclass(frozen=True)
class _Views:
    """The part of a chunk's tensors that belongs to the clients which still have steps to make."""

    weights: Weights
    velocity: Weights
    local: Local


def _step(at: _Views, x: Tensor, y: Tensor, share: Tensor, algorithm: Algorithm, settings: LocalSettings) -> Tensor:
    """One step of SGD along the method's direction; returns each client's mean objective before it, (K,)."""
    weights = {name: value.detach().requires_grad_() for name, value in at.weights.items()}
    loss = (algorithm.loss(forward, weights, x, y, at.local) * share).sum(-1)
    slopes = torch.autograd.grad(loss.sum(), list(weights.values()))
    with torch.no_grad():
        gradients = dict(zip(weights, slopes, strict=True))
        for name, g in algorithm.correct(gradients, at.weights, at.local).items():
            w = at.weights[name]
            g = g.add(w, alpha=settings.weight_decay)
            if settings.momentum:
                g = torch.add(g, at.velocity[name], alpha=settings.momentum, out=at.velocity[name])
            w.sub_(g, alpha=settings.lr)
    return loss.detach()


class _Batches:
    """Every client's next batch, side by side in one buffer, which is overwritten by the one after it."""

    def __init__(self, members: Sequence[CohortClient], settings: LocalSettings, device: torch.device) -> None:
        self.size = min(settings.batch_size, max(len(member.data) for member in members))
        self.streams = [_batches(member, settings.batch_size) for member in members]
        dtype = members[0].local.start[WEIGHT].dtype
        shape = (len(members), self.size)
        self.y, self.share = np.zeros(shape, np.int64), torch.zeros(shape, dtype=dtype).numpy()
        self.x: Tensor | None = None  # (K, size, ...)
        self.device = device
        self.there: dict[int, tuple[np.ndarray, Tensor]] = {}  # client -> its samples, and they on the device

    def next(self, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """x (K, B, ...), y (K, B) and each sample's share in its client's mean, (K, B), of the first ``clients``."""
        for k in range(clients):
            x, labels, rows = next(self.streams[k])
            batch = len(rows)
            if batch < self.size:
                rows = np.append(rows, rows[:1].repeat(self.size - batch))
            if self.x is None:
                first = torch.from_numpy(x)
                self.x = first.new_empty((*self.y.shape, *first.shape[1:]), device=self.device)
            self._fetch(k, x, rows, self.x[k])
            self.y[k, :batch] = labels
            self.share[k, :batch] = 1 / batch
            self.share[k, batch:] = 0
        assert self.x is not None
        y, share = (torch.from_numpy(each[:clients]).to(self.device) for each in (self.y, self.share))
        return self.x[:clients], y, share

    def _fetch(self, k: int, x: np.ndarray, rows: np.ndarray, out: Tensor) -> None:
        if self.device.type == "cpu":
            x.take(rows, 0, out.numpy(), "clip")  # numpy's is the fastest one
            return
        if k not in self.there or self.there[k][0] is not x:  # samples go there once, not at every step
            self.there[k] = (x, torch.from_numpy(x).to(self.device))
        out.copy_(self.there[k][1][torch.from_numpy(rows).to(self.device, non_blocking=True)])


def _batches(member: CohortClient, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """A client's batches without end: samples x (n, ...), the batch's labels and its rows of x, (B,)."""
    for x, labels, order in runs(member.data, size, member.generator):
        for start in range(0, len(order), size):
            part = slice(start, start + size)
            yield x, labels[part], order[part]


def _stacked(trees: Sequence[Weights], device: torch.device) -> Weights:
    return {name: torch.stack([tree[name] for tree in trees]).to(device) for name in trees[0]}


def _first(tree: Weights, clients: int) -> Weights:
    """The part of stacked tensors that belongs to the first clients; writing to it writes to them."""
    return {name: value[:clients] for name, value in tree.items()}


def _apart(tree: Weights, clients: int) -> list[Weights]:
    return [{name: value[k].cpu().clone() for name, value in tree.items()} for k in range(clients)]


class _Product(torch.autograd.Function):
    """W x^T for stacked W (K, C, p) and x (K, B, p), (K, C, B), with the products that are fast in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(weight, x.mT)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (slope,) = slopes
        return (
            torch.bmm(slope.mT, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(slope, x) if ctx.needs_input_grad[1] else None,
        )


def forward(weights: Weights, x: Tensor) -> Output:
    """A linear head's output for one client, W (C, p) and x (..., p), or for several, (K, C, p) and (K, B, p)."""
    weight, bias = weights[WEIGHT], weights[BIAS]
    alone = weight.ndim == 2
    logits = F.linear(x, weight, bias) if alone else (_Product.apply(x, weight) + bias.unsqueeze(-1)).mT
    return Output(logits, logits)
