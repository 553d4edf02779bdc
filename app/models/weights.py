"""Named tensors: as a file, by prefixes of their names, and as one vector."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..common.files import write_atomic
from .base import Weights


def save_weights(
    path: Path, weights: Weights, metadata: dict[str, str] | None = None, *, durable: bool = False
) -> None:
    """Named tensors as safetensors, atomically."""
    content = save({name: value.contiguous() for name, value in weights.items()}, metadata)
    write_atomic(path, content, durable=durable)


def prefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors with ``prefix`` before each name."""
    return {prefix + name: value for name, value in weights.items()}


def unprefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def flat(weights: Weights, names: Iterable[str]) -> Tensor:
    """All tensors in one float64 vector, in the order of ``names``."""
    return torch.cat([weights[name].double().flatten() for name in names])


def shaped(vector: Tensor, like: Weights) -> Weights:
    """What ``flat(like, like)`` would give ``vector`` of: its pieces in the names, shapes and types of ``like``."""
    pieces = vector.split([value.numel() for value in like.values()])
    return {name: piece.view(w.shape).to(w.dtype) for (name, w), piece in zip(like.items(), pieces, strict=True)}
