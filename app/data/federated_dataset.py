"""What a run is over: the sites of all clients, and what is held out. Images and EEG look alike from here."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..algorithms.registry import local_algorithm
from ..config.schema import Config


@dataclass(frozen=True, eq=False)
class Samples:
    """x: a model's inputs, (n, ...) float32 or float64. y: int64 (n,). domain: int64 (n,), an index of domains."""

    x: np.ndarray
    y: np.ndarray
    domain: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


class FederatedDataset(Protocol):
    """The data of a simulation, the same in every process; a node asks for its own clients' parts only."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def domains(self) -> tuple[str, ...]:
        """The names that ``Samples.domain`` indexes."""
        ...

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What a model must know of its inputs to be built."""
        ...

    @property
    def central(self) -> tuple[str, ...]:
        """Of 'val' and 'test' the samples that the server holds; of the others each client holds its own."""
        ...

    def __hash__(self) -> int:
        """Of the object: a data set is itself and no other."""
        ...

    def __len__(self) -> int:
        """The number of clients."""
        ...

    def client_domain(self, client: int) -> str | None:
        """The one domain of a client, None where it is mixed."""
        ...

    def train(self, client: int) -> Samples:
        """A client's training samples."""
        ...

    def held_out(self, part: str, client: int | None) -> Samples:
        """The 'val' or 'test' samples: the server's where ``client`` is None, else that client's."""
        ...

    def facts(self, client: int) -> dict[str, Any]:
        """What all clients must agree on beside classes and code, by name."""
        ...

    def partition_json(self) -> str:
        """Who holds what, to be saved with the run."""
        ...


@dataclass(frozen=True, eq=False)
class DatasetWrapper:
    """What a data set that is made of another one has from it unchanged."""

    inner: FederatedDataset

    @property
    def classes(self) -> tuple[str, ...]:
        return self.inner.classes

    @property
    def domains(self) -> tuple[str, ...]:
        return self.inner.domains

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self.inner.inputs

    @property
    def central(self) -> tuple[str, ...]:
        return self.inner.central

    @property
    def notes(self) -> Sequence[str]:
        return getattr(self.inner, "notes", ())

    @property
    def warnings(self) -> Sequence[str]:
        return getattr(self.inner, "warnings", ())

    def __len__(self) -> int:
        return len(self.inner)

    def client_domain(self, client: int) -> str | None:
        return self.inner.client_domain(client)

    def train(self, client: int) -> Samples:
        return self.inner.train(client)

    def held_out(self, part: str, client: int | None) -> Samples:
        return self.inner.held_out(part, client)

    def facts(self, client: int) -> dict[str, Any]:
        return self.inner.facts(client)

    def partition_json(self) -> str:
        return self.inner.partition_json()


def federated_dataset(config: Config) -> FederatedDataset:
    """The data set that ``config.data`` describes, gathered at one client where the method asks for it.

    Raises FedgeoError for what cannot be had.
    """
    found = _federated_dataset(config)
    return _gathered(found) if local_algorithm(config).centralised else found


def _federated_dataset(config: Config) -> FederatedDataset:
    if config.data.family == "eeg":
        from .eeg.dataset import eeg_dataset

        return eeg_dataset(config)
    from .images.dataset import image_dataset

    return image_dataset(config)


@functools.lru_cache(maxsize=4)
def _gathered(inner: FederatedDataset) -> FederatedDataset:
    from .pooled_dataset import PooledDataset

    return PooledDataset(inner)
