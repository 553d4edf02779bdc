"""The batched twin of app/training/plain.py: the linear heads of several clients, trained side by side.

The K clients of a chunk keep their weights stacked, (K, C, p), and take their steps together: each its own batch, in
the order that the plain loop would draw it, all of them in one batched product. A batch that is short, the last of an
epoch, is filled up with its first row at weight zero; a client with fewer steps than the others drops out when it
has made them. What comes out is what the plain loop gives, but for the order in which sums are rounded.

It is made for app/models/head.py without a hidden layer under SGD. Everything else, other models, Adam, stays with
the plain loop, which remains the reference.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from app.algorithms.base import Algorithm, Local, Trained
from app.errors import FedgeoError
from app.models.base import Output, Weights
from app.training.plain import Data, LocalResult, LocalSettings

WEIGHT, BIAS = "linear.weight", "linear.bias"
MOMENTUM = "momentum_buffer"  # torch's name for it, which the plain loop's moments carry
LARGEST = 10  # clients of a chunk: their batches fit a core's cache, and the overhead of a step is shared


@dataclass(frozen=True)
class Member:
    """One client of a chunk: its samples, what it begins with, and the rest of what ``plain.train`` is given.

    steps: gradient steps to make, in place of ``LocalSettings.steps``.
    """

    data: Data
    local: Local
    generator: torch.Generator
    moments: Weights = field(default_factory=dict)
    steps: int | None = None


def chunk_size(clients: int) -> int:
    """How many clients are trained together, of ``clients`` in all: two chunks at least, for two cores."""
    return min(LARGEST, math.ceil(clients / 2))


def train(
    members: Sequence[Member], algorithm: Algorithm, settings: LocalSettings, device: str = "cpu"
) -> list[LocalResult | Exception]:
    """Train every member's head, and return for each what ``plain.train`` would return, or the error it would raise.

    All members share ``Local.shared``. On ``device="cuda"`` samples and weights stay there for the whole round; the
    order of the samples goes there, nothing comes back before the end. That path is untested.
    """
    results: list[LocalResult | Exception] = [
        FedgeoError("a client has no training samples: leave it out of the training rounds") for _ in members
    ]
    present = [k for k, member in enumerate(members) if len(member.data)]
    members = [member if member.steps else replace(member, steps=settings.steps) for member in members]
    steps = {k: _steps(members[k], settings) for k in present}
    present.sort(key=lambda k: -steps[k])  # those that still have steps to make are always the first ones
    if present:
        chunk = Chunk([members[k] for k in present], [steps[k] for k in present], algorithm, settings, device)
        chunk.run()
        for place, k in enumerate(present):
            results[k] = chunk.result(place)
    return results


class Chunk:
    """The state of a chunk while it is trained. ``members`` are ordered by falling numbers of ``steps``."""

    def __init__(
        self,
        members: Sequence[Member],
        steps: Sequence[int],
        algorithm: Algorithm,
        settings: LocalSettings,
        device: str,
    ) -> None:
        self.members = [_entered(member, algorithm) for member in members]
        self.steps = steps
        self.algorithm = algorithm
        self.settings = settings
        self.device = torch.device(device)
        first = self.members[0].local
        if first.start.keys() != {WEIGHT, BIAS}:
            raise KeyError(f"weights {sorted(first.start)} do not fit the model's {[BIAS, WEIGHT]}")
        # the cross-entropy's gradient is known: autograd costs as much as the products
        self.plain_loss = type(algorithm).loss is Algorithm.loss
        self.start = self._stacked([member.local.start for member in self.members])
        self.state = self._stacked([member.local.state for member in self.members])
        self.shared = {name: value.to(self.device) for name, value in first.shared.items()}
        self.weights = {name: value.clone() for name, value in self.start.items()}
        self.velocity = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for place, member in enumerate(self.members):
            for name, velocity in self.velocity.items():
                if (kept := member.moments.get(f"{name}/{MOMENTUM}")) is not None:
                    velocity[place] = kept
        self.losses = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)

    def run(self) -> None:
        """Make all steps."""
        batches = _Batches(self.members, self.settings, self.device)
        done = 0
        while done < self.steps[0]:
            active = sum(n > done for n in self.steps)
            upto = self.steps[active - 1]  # until the next one drops out
            views = _Views(
                _first(self.weights, active),
                _first(self.velocity, active),
                Local(_first(self.start, active), self.shared, _first(self.state, active)),
                self.losses[:active],
            )
            for x, y, share in itertools.islice(batches.of(active), upto - done):
                self._step(views, x, y, share)
            done = upto

    def _step(self, at: "_Views", x: Tensor, y: Tensor, share: Tensor) -> None:
        """One step of the first clients. x (K, B, p), y (K, B), share (K, B): what each sample counts in the mean."""
        loss, gradients = (self._entropy if self.plain_loss else self._objective)(at, x, y, share)
        with torch.no_grad():
            at.losses.add_(loss)
            for name, g in self.algorithm.correct(gradients, at.weights, at.local).items():
                w = at.weights[name]
                if self.settings.momentum:
                    g = at.velocity[name].mul_(self.settings.momentum).add_(g).add_(w, alpha=self.settings.weight_decay)
                else:
                    g = g.add(w, alpha=self.settings.weight_decay)
                w.sub_(g, alpha=self.settings.lr)

    @torch.no_grad()
    def _entropy(self, at: "_Views", x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Weights]:
        """Each client's mean cross-entropy, (K,), and its gradient, (softmax - one-hot) x."""
        logits = torch.baddbmm(at.weights[BIAS].unsqueeze(-1), at.weights[WEIGHT], x.mT)  # (K, C, B)
        log_p = torch.log_softmax(logits, 1)
        one_hot = torch.zeros_like(log_p).scatter_(1, y.unsqueeze(1), share.unsqueeze(1))
        loss = (log_p * one_hot).sum((1, 2)).neg_()
        slope = log_p.exp_().mul_(share.unsqueeze(1)).sub_(one_hot)
        return loss, {WEIGHT: torch.bmm(slope, x), BIAS: slope.sum(-1)}

    def _objective(self, at: "_Views", x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Weights]:
        """The same for a method with an objective of its own, by autograd."""
        weights = {name: value.detach().requires_grad_() for name, value in at.weights.items()}
        loss = (self.algorithm.loss(forward, weights, x, y, at.local) * share).sum(-1)
        gradients = torch.autograd.grad(loss.sum(), list(weights.values()))
        return loss.detach(), dict(zip(weights, gradients, strict=True))

    def result(self, place: int) -> LocalResult | Exception:
        """What the member at ``place`` sends and keeps, or its error."""
        member, steps = self.members[place], self.steps[place]
        loss = float(self.losses[place]) / steps
        if not math.isfinite(loss):
            return FloatingPointError(
                "the local loss is not finite: lower training.lr, or look for outliers in the data"
            )
        trained = Trained(
            weights={name: value[place].cpu().clone() for name, value in self.weights.items()},
            steps=steps,
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            forward=forward,
            data=lambda: member.data.in_order(self.settings.batch_size),
        )
        try:
            with torch.no_grad():
                extra, state = self.algorithm.finish(trained, member.local)
        except Exception as error:  # this client's alone
            return error
        moments = {}
        if self.settings.momentum:
            moments = {f"{name}/{MOMENTUM}": value[place].cpu().clone() for name, value in self.velocity.items()}
        return LocalResult(trained.weights, extra, state, loss, steps, moments)

    def _stacked(self, trees: Sequence[Weights]) -> Weights:
        return {name: torch.stack([tree[name] for tree in trees]).to(self.device) for name in trees[0]}


@dataclass(frozen=True)
class _Views:
    """The part of a chunk's tensors that belongs to the clients which still have steps to make."""

    weights: Weights
    velocity: Weights
    local: Local
    losses: Tensor


class _Batches:
    """Every client's batches, stacked step by step in one buffer: (x, y, share) are overwritten at the next step."""

    def __init__(self, members: Sequence[Member], settings: LocalSettings, device: torch.device) -> None:
        self.elsewhere = device.type != "cpu"
        self.size = min(settings.batch_size, max(len(member.data) for member in members))
        self.streams = [_stream(member, settings) for member in members]
        self.x = self.share = torch.empty(0)  # the first batch tells their shape and type
        self.y = torch.zeros((len(members), self.size), dtype=torch.int64, device=device)
        self.places: list[tuple[np.ndarray, np.ndarray]] = []  # every client's part of x and y
        self.lengths = [0] * len(members)
        self.there: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # client -> its samples, and they on the device

    def of(self, clients: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The steps of the first ``clients``, without end."""
        while True:
            for k in range(clients):
                x, y, rows = next(self.streams[k])
                samples = rows.numel()
                if samples != self.lengths[k]:
                    self._share(k, samples, x)
                if samples < self.size:
                    rows = torch.cat([rows, rows[:1].expand(self.size - samples)])
                if self.elsewhere:
                    self._copy(k, x, y, rows)
                    continue
                order = rows.numpy()  # numpy's take is much the faster one
                x.numpy().take(order, 0, self.places[k][0], "clip")
                y.numpy().take(order, 0, self.places[k][1], "clip")
            yield self.x[:clients], self.y[:clients], self.share[:clients]

    def _share(self, k: int, samples: int, x: Tensor) -> None:
        """From now on the client's batches have so many samples."""
        if not self.x.numel():
            self.x = torch.empty((*self.y.shape, *x.shape[1:]), dtype=x.dtype, device=self.y.device)
            self.share = torch.empty(self.y.shape, dtype=x.dtype, device=self.y.device)
            if not self.elsewhere:
                self.places = list(zip(self.x.numpy(), self.y.numpy(), strict=True))
        self.lengths[k] = samples
        self.share[k] = 1 / samples
        self.share[k, samples:] = 0

    def _copy(self, k: int, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """The same on another device, where the samples go once, not at every step."""
        device = self.y.device
        if k not in self.there or self.there[k][0] is not x:
            self.there[k] = (x, x.to(device), y.to(device))
        _, samples, labels = self.there[k]
        rows = rows.to(device, non_blocking=True)
        self.x[k] = samples[rows]
        self.y[k] = labels[rows]


def _stream(member: Member, settings: LocalSettings) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A member's batches of all epochs as (x, y, rows): the batch is x[rows], y[rows]."""
    epochs = itertools.count() if member.steps is not None else range(settings.epochs)
    return itertools.chain.from_iterable(_picks(member.data, settings.batch_size, member.generator) for _ in epochs)


def _picks(data: Any, batch_size: int, generator: torch.Generator) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """One epoch. A set that has no ``picks`` gives its batches whole."""
    if hasattr(data, "picks"):
        return data.picks(batch_size, generator)
    return ((x, y, torch.arange(len(y))) for x, y in data.batches(batch_size, generator))


def _steps(member: Member, settings: LocalSettings) -> int:
    """How many steps a member makes."""
    if member.steps is not None:
        return member.steps
    return settings.epochs * math.ceil(len(member.data) / settings.batch_size)


def _first(tree: Weights, clients: int) -> Weights:
    """The part of stacked tensors that belongs to the first clients; writing to it writes to them."""
    return {name: value[:clients] for name, value in tree.items()}


def _entered(member: Member, algorithm: Algorithm) -> Member:
    """The member with the state it has at a first participation, where this is one."""
    if member.local.state:
        return member
    return replace(member, local=replace(member.local, state=algorithm.client_state(member.local.start)))


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
