"""What an augmentation is: one class with the whole life of its kind, on clients and on the server.

Before the rounds every client shares ``client_statistics``. The server reads and checks them (``read_statistics``,
``check_statistics``) and makes of all of them what every client is sent (``merge``). A client reads and checks that
(``read_shared``) and trains on its ``training_set`` with its ``objective``. Everything here is numpy arrays and torch
tensors; how they travel is not an augmentation's concern.

A new augmentation is one file with a subclass of ``Augmentation``, a frozen dataclass whose fields are its settings,
and one file in conf/augmentation that names it: see registry.py.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..algorithms.base import Algorithm
from ..common.errors import FedgeoError
from ..common.received import LARGEST
from ..config.privacy import rounded
from ..config.schema import Privacy
from ..geometry.class_statistics import ClassStatistics, cut
from ..geometry.gaussians import Gaussians
from ..training.plain import Data
from .augmented_set import AugmentedSet

ByCount = TypeVar("ByCount", ClassStatistics, Gaussians)


class Shared(Protocol):
    """What the clients' statistics come to, and all clients are sent."""

    def to_arrays(self, dtype: str = ...) -> dict[str, np.ndarray]:
        """The fields by name. dtype: of the floats."""
        ...


class TrainingSet(Data, Protocol):
    """What a client trains on."""

    @property
    def own(self) -> AugmentedSet:
        """The samples, real and drawn, before anything is mixed into them."""
        ...


@dataclass(frozen=True)
class Client:
    """What a client knows of itself. number: its own. classes: how many there are. privacy: what it may share."""

    number: int
    classes: int
    seed: int
    privacy: Privacy


@dataclass(frozen=True, eq=False)
class Sender:
    """Whose statistics the server checks, and what that client reported in its handshake.

    name: begins every error. counts: int64 (C,), samples by class. exact: whether these are true, and not rounded.
    dimension: of its embeddings. largest: the most that the mean of their squared norms can be, 1 where they have unit
    norm.
    """

    name: str
    counts: np.ndarray
    exact: bool
    dimension: int
    largest: float = LARGEST


@dataclass(frozen=True, eq=False)
class Population:
    """What the server knows of all clients when it merges.

    domains: int64 (all clients,), the number of each client's domain from 0, -1 where it is mixed or unknown.
    rank_share: a shared shape has at most this share of its class's samples as rank.
    """

    domains: np.ndarray
    rank_share: float


@dataclass(frozen=True)
class Receiver:
    """Who reads what all clients were sent. clients: how many there are in all, whoever takes part."""

    classes: int
    dimension: int
    clients: int
    privacy: Privacy


@dataclass(frozen=True)
class Augmentation:
    """The settings of one kind, and what it does. Those that a method below needs are the subclass's fields.

    name: what errors call it. families: of data that it works on. exchanges: whether anything is shared before the
    rounds; where not, only ``training_set`` is called. shares_covariances: whether what clients share are class
    statistics with covariances, from which a first head and the similarity of domains can be had for nothing. control:
    whether the training set holds the client's own samples alone, once or repeated. by_class: whether clients share
    statistics by class and nothing else, so that without a class of enough samples there is nothing to ask for.
    """

    name: ClassVar[str] = "augmentation"
    families: ClassVar[Collection[str]] = ("images",)
    exchanges: ClassVar[bool] = True
    shares_covariances: ClassVar[bool] = False
    control: ClassVar[bool] = False
    by_class: ClassVar[bool] = False

    @property
    def robust(self) -> tuple[str, ...]:
        """The values of ``federation.robust`` that fit, beside none; () where no class statistics are merged."""
        return ()

    @property
    def from_sums(self) -> bool:
        """Whether sums over all clients by class are enough for what all are sent, so that masks fit."""
        return False

    # --- before anything starts ---

    def check(self, privacy: Privacy) -> None:
        """Raises FedgeoError where a policy forbids what this kind would send."""

    def check_domains(self, domains: Collection[str | None]) -> None:
        """Raises FedgeoError where it can do nothing with clients of these domains, one each, None where mixed."""

    # --- a client ---

    def client_statistics(self, x: np.ndarray, y: np.ndarray, client: Client) -> dict[str, np.ndarray]:
        """What the client shares of its samples x float32 (n, p), y int64 (n,), by name; counts as its policy bids."""
        raise NotImplementedError

    def read_shared(self, arrays: Mapping[str, np.ndarray], receiver: Receiver) -> Shared:
        """What the server sent, checked against all that the client knows. Raises FedgeoError at the first fault.

        arrays: those of ``Shared.to_arrays``, and ``domains``, the number of each client's domain or -1, checked.
        """
        raise NotImplementedError

    def training_set(
        self,
        x: np.ndarray,
        y: np.ndarray,
        shared: Any,
        *,
        classes: int,
        seed: int,
        client: int,
        own: Collection[int] | None = None,
    ) -> TrainingSet:
        """The client's samples x float32 (n, p), y int64 (n,), augmented with ``shared`` (None: nothing was sent).

        own: the clients whose class means are not foreign to this one: all of its domain; None: itself alone.
        """
        raise NotImplementedError

    def objective(self, algorithm: Algorithm, classes: int) -> Algorithm:
        """What is trained on the set: ``algorithm``, or one that is made of it."""
        return algorithm

    def form(self, privacy: Privacy) -> dict[str, Any]:
        """The settings that two releases of one client's statistics may not differ in: they would tell of samples."""
        return {}

    # --- the server ---

    def read_statistics(self, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> Any:
        """What ``client_statistics`` gave, of the right shapes and types. Raises FedgeoError after ``origin``.

        A result that is by class (``geometry.class_statistics.ByClass``) loses, before it is merged, the classes of
        which all clients together have too few samples.
        """
        raise NotImplementedError

    def check_statistics(self, found: Any, sender: Sender) -> None:
        """Refuse what does not go with what the client reported. Raises FedgeoError."""
        raise NotImplementedError

    def merge(self, parts: Mapping[int, Any], clients: Population) -> Shared:
        """What all clients are sent. parts: by client, as ``read_statistics`` gave them."""
        raise NotImplementedError

    def record(self, shared: Any, classes: Sequence[str]) -> dict[str, Any]:
        """What augmentation.json says of what was sent; plain values."""
        return {}

    def warning(self, shared: Any, perturbation_rms: float) -> str | None:
        """What a person should know of the drawn samples before believing a figure; None for nothing.

        perturbation_rms: the root of their mean squared perturbation, over all clients.
        """
        return None


def packed(found: ByCount, privacy: Privacy, precision: str) -> dict[str, np.ndarray]:
    """Statistics by class as a client sends them: counts rounded as its policy bids, floats in ``precision``.

    Ranks of covariances tell no more than the counts: a factor of 13 rows would be of 14 samples.
    """
    counts = np.array([rounded(int(n), privacy) for n in found.counts], dtype=np.int64)
    if privacy.round_counts > 1 and isinstance(found, ClassStatistics) and found.ranks.any():
        return cut(found, counts).to_arrays(precision)
    return replace(found, counts=counts).to_arrays(precision)


def domain_clients(client: int, domains: np.ndarray) -> set[int]:
    """The clients of this one's domain, itself among them. domains: int64 (clients,), -1 where mixed."""
    if client >= len(domains):
        raise FedgeoError(f"client {client} is not among the {len(domains)} clients that the geometry is for")
    same = np.flatnonzero((domains == domains[client]) & (domains >= 0))
    return {client, *same.tolist()}
