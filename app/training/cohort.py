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
from collections.abc import Iterable, Sequence
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
BLOCK = 8  # steps that are prepared together


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
            while done < upto:
                done += self._block(views, batches, batches.prepare(active, min(BLOCK, upto - done)))

    def _block(self, at: "_Views", batches: "_Batches", block: "_Block") -> int:
        """Some steps of the first clients; returns how many."""
        if not self.plain_loss:
            for step in range(len(block.y)):
                x, share = batches.samples(block, step), block.share[step]
                loss, gradients = self._objective(at, x, block.y[step], share)
                self._descend(at, gradients)
                at.losses.add_(loss)
            return len(block.y)
        with torch.no_grad():  # the cross-entropy's gradient is known: autograd costs as much as the products
            classes = at.weights[BIAS].shape[-1]
            shape = (*block.y.shape[:2], classes, block.y.shape[2])
            share = block.share.unsqueeze(2)
            target = share.new_zeros(shape).scatter_(2, block.y.unsqueeze(2), share)
            log_p = torch.empty_like(target)
            weight, bias = at.weights[WEIGHT], at.weights[BIAS].unsqueeze(-1)
            gradients = {name: torch.empty_like(value) for name, value in at.weights.items()}
            for step, (p, share_, target_) in enumerate(zip(log_p, share, target, strict=True)):
                x = batches.samples(block, step)
                torch.log_softmax(torch.baddbmm(bias, weight, x.mT), 1, out=p)  # (K, C, B)
                slope = p.exp().mul_(share_).sub_(target_)
                torch.bmm(slope, x, out=gradients[WEIGHT])
                torch.sum(slope, -1, out=gradients[BIAS])
                self._descend(at, gradients)
            at.losses.sub_((log_p * target).sum((2, 3)).double().sum(0))
        return len(block.y)

    @torch.no_grad()
    def _descend(self, at: "_Views", gradients: Weights) -> None:
        """One step of SGD along the method's direction."""
        settings = self.settings
        for name, g in self.algorithm.correct(gradients, at.weights, at.local).items():
            w = at.weights[name]
            g = g.add(w, alpha=settings.weight_decay)
            if settings.momentum:
                g = torch.add(g, at.velocity[name], alpha=settings.momentum, out=at.velocity[name])
            w.sub_(g, alpha=settings.lr)

    def _objective(self, at: "_Views", x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Weights]:
        """Each client's mean objective, (K,), and its gradient by autograd, for a method with one of its own."""
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


@dataclass(frozen=True)
class _Block:
    """Some steps of K clients, before their samples are fetched.

    y: int64 (steps, K, B). share: (steps, K, B), what each sample counts in its client's mean. sources: by step and
    client, the samples x (n, ...) whose ``rows`` (steps, K, B) the batch is.
    """

    y: Tensor
    share: Tensor
    sources: list[list[np.ndarray]]
    rows: np.ndarray


class _Batches:
    """Every client's batches, stacked step by step in one buffer, which is overwritten at the next step."""

    def __init__(self, members: Sequence[Member], settings: LocalSettings, device: torch.device) -> None:
        self.device = device
        self.size = min(settings.batch_size, max(len(member.data) for member in members))
        self.streams = [_Stream(member.data, settings.batch_size, member.generator) for member in members]
        first = torch.from_numpy(self.streams[0].x)
        self.x = first.new_empty((len(members), self.size, *first.shape[1:]), device=device)
        self.places = [] if device.type != "cpu" else list(self.x.numpy())  # every client's part
        self.there: dict[int, tuple[np.ndarray, Tensor]] = {}  # client -> its samples, and they on the device

    def prepare(self, clients: int, steps: int) -> _Block:
        """The next ``steps`` of the first ``clients``."""
        shape = (steps, clients, self.size)
        y, rows = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        share = np.zeros(shape, self.streams[0].x.dtype)
        sources: list[list[np.ndarray]] = [[] for _ in range(steps)]
        for k in range(clients):
            stream, step = self.streams[k], 0
            while step < steps:
                x, labels, order = stream.take(steps - step)  # (batches, samples of each)
                upto, samples = step + len(order), order.shape[1]
                y[step:upto, k, :samples] = labels
                rows[step:upto, k, :samples] = order
                rows[step:upto, k, samples:] = order[:, :1]  # at weight zero
                share[step:upto, k, :samples] = 1 / samples
                for source in sources[step:upto]:
                    source.append(x)
                step = upto
        return _Block(
            torch.from_numpy(y).to(self.device), torch.from_numpy(share).to(self.device), sources, rows
        )

    def samples(self, block: _Block, step: int) -> Tensor:
        """The samples of one step, (K, B, ...)."""
        rows = block.rows[step]
        if self.device.type != "cpu":
            self._copy(block.sources[step], rows)
        else:
            for x, order, place in zip(block.sources[step], rows, self.places, strict=False):
                x.take(order, 0, place, "clip")  # numpy's is the fastest one
        return self.x[: len(rows)]

    def _copy(self, sources: Sequence[np.ndarray], rows: np.ndarray) -> None:
        """The same on another device, where the samples go once, not at every step."""
        for k, x in enumerate(sources):
            if k not in self.there or self.there[k][0] is not x:
                self.there[k] = (x, torch.from_numpy(x).to(self.device))
            self.x[k] = self.there[k][1][torch.from_numpy(rows[k]).to(self.device, non_blocking=True)]


class _Stream:
    """A client's batches, epoch after epoch without end."""

    def __init__(self, data: Any, batch_size: int, generator: torch.Generator) -> None:
        self.size = batch_size
        self.runs = itertools.chain.from_iterable(_runs(data, batch_size, generator) for _ in itertools.count())
        self.x, self.labels, self.order = self._run()
        self.at = 0

    def take(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next batches, at most so many and all of one size: x (n, ...), labels and rows of x (batches, size)."""
        if self.at == len(self.order):
            self.x, self.labels, self.order = self._run()
            self.at = 0
        left = len(self.order) - self.at
        size = min(self.size, left)
        upto = self.at + min(most, left // size) * size
        part = slice(self.at, upto)
        self.at = upto
        return self.x, self.labels[part].reshape(-1, size), self.order[part].reshape(-1, size)

    def _run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y, order = next(self.runs)
        return x.numpy(), y.numpy().take(order.numpy()), order.numpy()


def _runs(data: Any, batch_size: int, generator: torch.Generator) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """One epoch in runs of batches. A set that has no ``picks`` gives its batches whole."""
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
