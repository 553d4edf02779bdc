"""Gathered: another data set with all training samples at one client, for the centralised reference."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .federated_dataset import DatasetWrapper, Samples


@dataclass(frozen=True, eq=False)
class PooledDataset(DatasetWrapper):
    """The samples, splits and held-out sets are the inner data set's, as its clients had them."""

    def __len__(self) -> int:
        return 1

    def client_domain(self, client: int) -> str | None:
        return self.domains[0] if len(self.domains) == 1 else None

    @functools.cached_property
    def _training(self) -> Samples:
        return joined([self.inner.train(k) for k in range(len(self.inner))])

    def train(self, client: int) -> Samples:
        return self._training

    def held_out(self, part: str, client: int | None) -> Samples:
        if client is None:
            return self.inner.held_out(part, None)
        return joined([self.inner.held_out(part, k) for k in range(len(self.inner))])

    def facts(self, client: int) -> dict[str, Any]:
        return self.inner.facts(0)


def joined(parts: list[Samples]) -> Samples:
    """All samples, part after part."""
    return Samples(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "domain")))
