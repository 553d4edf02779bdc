"""Named tensors: as a file, and by prefixes of their names."""

from pathlib import Path

from safetensors.torch import save

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
