"""One client among those that app/training/cohort.py trains: what it begins with, its batches, and where it ends."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..algorithms.base import Local
from ..models.base import Weights
from .plain import Data

WEIGHT, BIAS = "linear.weight", "linear.bias"


@dataclass(frozen=True)
class CohortClient:
    """One client: its samples, what it begins with, and the rest of what ``plain.train`` is given.

    steps: gradient steps to make, in place of ``LocalSettings.steps``.
    """

    data: Data
    local: Local
    generator: torch.Generator
    moments: Weights = field(default_factory=dict)
    steps: int | None = None


@dataclass(frozen=True)
class TrainedClient:
    """Weights and momentum after the last step, and the sum of the steps' mean losses."""

    weights: Weights
    velocity: Weights
    losses: float


def runs(data: Any, batch_size: int, generator: torch.Generator) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """A client's batches, epoch after epoch without end, in runs: samples x (n, ...), labels and rows of x, (m,).

    Each run is cut into batches of ``batch_size``, the last one smaller, in the order that ``data.batches`` has. A
    set without ``picks`` gives every batch as a run.
    """
    while True:
        if hasattr(data, "picks"):
            for x, y, order in data.picks(batch_size, generator):
                yield x.numpy(), y.numpy().take(order.numpy()), order.numpy()
                del x, y  # a window may be given up while the next one is drawn
        else:
            for x, y in data.batches(batch_size, generator):
                yield x.numpy(), y.numpy(), np.arange(len(y))
