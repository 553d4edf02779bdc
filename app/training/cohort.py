"""The fast twin of app/training/plain.py: the linear heads of many clients under SGD.

A client whose method minimises the cross-entropy along g + offset + mu (w - w_t) takes its steps in compiled code,
app/training/compiled.py, one client after the other. Methods with an objective or a direction of their own take them
for a chunk of clients together, app/training/stacked.py. What comes out is what the plain loop gives, but for the
order in which sums are rounded.

It is made for app/models/linear.py without a hidden layer under SGD. Everything else, other models, Adam, stays with
the plain loop, which remains the reference.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..algorithms.base import Algorithm, Trained
from ..common.errors import FedgeoError
from ..models.base import Weights
from . import stacked
from .cohort_client import BIAS, WEIGHT, CohortClient, TrainedClient, runs
from .plain import LocalResult, LocalSettings

MOMENTUM = "momentum_buffer"  # torch's name for it, which the plain loop's moments carry
LARGEST = 10  # clients of a chunk: their batches fit a core's cache, and the overhead of a step is shared


def chunk_size(clients: int) -> int:
    """How many clients are trained together, of ``clients`` in all: two chunks at least, for two cores."""
    return min(LARGEST, math.ceil(clients / 2))


def train(
    members: Sequence[CohortClient], algorithm: Algorithm, settings: LocalSettings, device: str = "cpu"
) -> list[LocalResult | Exception]:
    """Train every member's head, and return for each what ``plain.train`` would return, or the error it would raise.

    All members share ``Local.auxiliary``. See ``stacked.descend`` for ``device="cuda"``.
    """
    results: list[LocalResult | Exception] = [
        FedgeoError("a client has no training samples: leave it out of the training rounds") for _ in members
    ]
    steps = {k: _steps(member, settings) for k, member in enumerate(members) if len(member.data)}
    present = sorted(steps, key=lambda k: -steps[k])
    taking = [_entered(members[k], algorithm) for k in present]
    for member in taking:
        if member.local.start.keys() != {WEIGHT, BIAS}:
            raise KeyError(f"weights {sorted(member.local.start)} do not fit the model's {[BIAS, WEIGHT]}")
    ends: Sequence[TrainedClient | Exception]
    if device == "cpu" and _is_compiled(algorithm):
        ends = [_descend(m, steps[k], algorithm, settings) for k, m in zip(present, taking, strict=True)]
    elif taking:
        velocities = [_velocity(member) for member in taking]
        ends = stacked.descend(taking, velocities, [steps[k] for k in present], algorithm, settings, device)
    else:
        ends = []
    for k, member, end in zip(present, taking, ends, strict=True):
        results[k] = end if isinstance(end, Exception) else _result(member, end, steps[k], algorithm, settings)
    return results


def _is_compiled(algorithm: Algorithm) -> bool:
    """Whether the compiled steps are this method's."""
    method = type(algorithm)
    return method.loss is Algorithm.loss and method.correct is Algorithm.correct


def _descend(
    member: CohortClient, steps: int, algorithm: Algorithm, settings: LocalSettings
) -> TrainedClient | Exception:
    """All steps of one client, compiled; or what is wrong with it."""
    from . import compiled

    try:
        start, gradient_offset = member.local.start, algorithm.gradient_offset(member.local)
        weights = {name: _whole(value, value).clone() for name, value in start.items()}
        velocity = {name: _whole(value, start[name]) for name, value in _velocity(member).items()}
        weight, bias = (
            compiled.Parameter(
                weights[name].numpy(),
                velocity[name].numpy(),
                _whole(start[name], start[name]).numpy(),
                _whole(gradient_offset[name] if gradient_offset else torch.zeros(()), start[name]).numpy(),
            )
            for name in (WEIGHT, BIAS)
        )
        step = compiled.Step(
            *map(float, (settings.lr, settings.momentum, settings.weight_decay, algorithm.proximal_weight))
        )
        left, losses = steps, 0.0
        batches = runs(member.data, settings.batch_size, member.generator)
        while left > 0:
            x, labels, order = map(np.ascontiguousarray, next(batches))
            done, loss = compiled.descend(x, labels, order, settings.batch_size, left, weight, bias, step)
            left, losses = left - done, losses + loss
            del x, labels, order  # a window is given up before the next one is drawn
    except Exception as error:  # this client's alone
        return error
    return TrainedClient(weights, velocity, losses)


def _whole(value: Tensor, like: Tensor) -> Tensor:
    """``value`` in the shape and dtype of ``like``, in C order: compiled code reads what lies there, whatever it is."""
    return value.detach().to(like.dtype).expand_as(like).contiguous()


def _result(
    member: CohortClient, end: TrainedClient, steps: int, algorithm: Algorithm, settings: LocalSettings
) -> LocalResult | Exception:
    """What a member sends and keeps, or its error."""
    loss = end.losses / steps
    if not math.isfinite(loss):
        return FloatingPointError("the local loss is not finite: lower training.lr, or look for outliers in the data")
    trained = Trained(
        weights=end.weights,
        steps=steps,
        lr=settings.lr,
        momentum=settings.momentum,
        forward=stacked.forward,
        data=lambda: member.data.in_order(settings.batch_size),
    )
    try:
        with torch.no_grad():
            auxiliary, state = algorithm.finish(trained, member.local)
    except Exception as error:  # this client's alone
        return error
    moments = {f"{name}/{MOMENTUM}": value for name, value in end.velocity.items()} if settings.momentum else {}
    return LocalResult(end.weights, auxiliary, state, loss, steps, moments)


def _steps(member: CohortClient, settings: LocalSettings) -> int:
    """How many steps a member makes."""
    if (steps := member.steps or settings.steps) is not None:
        return steps
    return settings.epochs * math.ceil(len(member.data) / settings.batch_size)


def _entered(member: CohortClient, algorithm: Algorithm) -> CohortClient:
    """The member with the state it has at a first participation, where this is one."""
    if member.local.state:
        return member
    return replace(member, local=replace(member.local, state=algorithm.client_state(member.local.start)))


def _velocity(member: CohortClient) -> Weights:
    """The momentum that a member goes on with: what it kept, or zero."""
    kept = {name: member.moments.get(f"{name}/{MOMENTUM}") for name in member.local.start}
    return {
        name: torch.zeros_like(start) if (value := kept[name]) is None else value.clone()
        for name, start in member.local.start.items()
    }
