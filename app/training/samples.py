"""A client's training set in memory: tensors, shuffled and cut into batches."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


class TensorSet:
    """x: (n, ...) of any float type, y: int64 (n,), kept without a copy."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def nbytes(self) -> int:
        """Bytes that the samples take."""
        return self.x.nbytes + self.y.nbytes

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch: every sample once, in shuffled batches of ``batch_size``, the last one smaller."""
        return taken(self.picks(batch_size, generator), batch_size)

    def picks(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same epoch without copies: (x, y, rows), whose batches are x and y at ``batch_size`` rows each."""
        yield self.x, self.y, torch.randperm(len(self), generator=generator)

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One unshuffled pass."""
        yield from zip(self.x.split(batch_size), self.y.split(batch_size), strict=True)


def taken(picks: Iterable[tuple[Tensor, Tensor, Tensor]], batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch that is given as (x, y, rows)."""
    for x, y, order in picks:
        for rows in order.split(batch_size):
            yield x[rows], y[rows]
        del x, y  # a window may be given up while the next one is drawn
