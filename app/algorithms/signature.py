"""What a method sends up and down besides numbers: names, shapes and types of tensors, found by trying it once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.errors import FedgeoError
from ..common.received import LARGEST
from ..geometry.stiefel import distance_to_stiefel
from ..models.base import Model, Output, Weights
from ..models.spdnet import OFF_MANIFOLD
from .base import Algorithm, Local, Trained, Update

Template = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> (shape, type)."""


@dataclass(frozen=True)
class Signature:
    """weights: both ways. up: beside a client's weights. down: beside the server's, before and after its first step."""

    weights: Template
    up: Template
    down: tuple[Template, ...]


def template(tensors: Weights) -> Template:
    """What tensors like these look like."""
    return {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}


@torch.no_grad()
def signature(algorithm: Algorithm, model: Model) -> Signature:
    """What ``algorithm`` exchanges on ``model``, from one step of a single client on a blank sample."""
    if not algorithm.shares:
        return Signature({}, {}, ({},))
    weights = model.export()
    if not algorithm.trains:
        return Signature(template(weights), {}, ({},))
    x, y = model.blank_input(), torch.zeros(1, dtype=torch.int64)

    def forward(values: Weights, x: Tensor) -> Output:
        return torch.func.functional_call(model, values, (x,))

    model.eval()
    state = algorithm.server_state(weights)
    before = algorithm.auxiliary(state)
    trained = Trained(weights, 1, 1.0, 0.0, forward, lambda: iter([(x, y)]))
    up, _ = algorithm.finish(trained, Local(weights, before, algorithm.client_state(weights)))
    _, state = algorithm.aggregate(weights, state, [Update(0, weights, up, 1.0)], 1)
    return Signature(template(weights), template(up), (template(before), template(algorithm.auxiliary(state))))


def check_tensors(found: Weights, wanted: Template, who: str) -> None:
    """Refuse tensors that are not of ``wanted``'s names, shapes and types, or not finite, or absurdly large.

    Matrices named ``stiefel.`` must have orthonormal columns. Raises FedgeoError, which begins with ``who``.
    """
    if found.keys() != wanted.keys():
        lacking, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
        fault = f"lacks {lacking[0]}" if lacking else f"has {unknown[0]}, which is unknown"
        raise FedgeoError(f"{who}: {fault}; expected {', '.join(wanted) or 'nothing'}")
    for name, (shape, dtype) in wanted.items():
        value = found[name]
        if tuple(value.shape) != shape or value.dtype != dtype:
            said, meant = _described(tuple(value.shape), value.dtype), _described(shape, dtype)
            raise FedgeoError(f"{who}: {name} must be {meant}, not {said}")
        largest = float(value.abs().max()) if value.numel() else 0.0
        if not math.isfinite(largest):  # NaN where there is one
            raise FedgeoError(f"{who}: {name} holds values that are not finite")
        if largest > LARGEST:
            raise FedgeoError(f"{who}: {name} holds values above {LARGEST:g}")
        if name.startswith("stiefel.") and not distance_to_stiefel(value.double()) <= OFF_MANIFOLD:
            raise FedgeoError(f"{who}: {name} has no orthonormal columns")


def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
