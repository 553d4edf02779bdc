"""What a node does for each client that it hosts: describe, gather statistics, augment, train.

Nothing here knows Flower. Everything that is expensive is kept for the next message of the same process, and is
rebuilt from the site's data and its state folder where the process is new.
"""

import functools
import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save

from app import algorithms
from app.algorithms.base import Algorithm, Local
from app.algorithms.fedavg import FedAvg
from app.augmentation import Augmentation, AugmentedSet
from app.checkpoint import ClientStates, write_atomic
from app.config import Config
from app.data.pool import Pool, pool
from app.errors import FedgeoError
from app.geometry import Geometry
from app.models import build
from app.models.base import Weights
from app.seeds import SHUFFLE, generator
from app.statistics import gather
from app.training.plain import LocalResult, LocalSettings, train

SETS_BYTES = 2**30  # augmented sets kept between rounds; the oldest make room
ROOT = Path(__file__).resolve().parent.parent


class MissingGeometry(FedgeoError):
    """The node does not have the geometry that the round needs, and must be sent it."""


class Node:
    """The clients of one node. ``place`` is (partition-id, num-partitions); ``state`` its folder."""

    def __init__(self, config: Config, place: tuple[int, int], state: Path) -> None:
        self.config = config
        self.pool: Pool = pool(config)
        self.clients = hosted(len(self.pool.partition), *place)
        self.state = state
        self.states = ClientStates(state / "clients")
        self.algorithm = local_algorithm(config)
        self._sets: OrderedDict[tuple[int, str], AugmentedSet] = OrderedDict()
        self._geometry: tuple[str, Geometry] | None = None

    def hello(self, client: int) -> dict[str, Any]:
        """What must agree before anything is trained, and how many samples of each class there are."""
        x, y = self.pool.client(client)
        classes = self.pool.source.classes
        return {
            "classes": list(classes),
            "dimension": int(x.shape[1]),
            "domain": self.pool.partition.domains[client],
            "counts": np.bincount(y, minlength=len(classes)).tolist(),
            "code": code_hash(),
        }

    def statistics(self, client: int) -> dict[str, np.ndarray]:
        """The client's class statistics, packed."""
        x, y = self.pool.client(client)
        return gather(x, y, minimum=self.config.privacy.min_count).to_arrays()

    def keep_geometry(self, digest: str, arrays: dict[str, np.ndarray]) -> None:
        """Check the geometry and keep it under its digest."""
        if digest != array_digest(arrays):
            raise FedgeoError("the geometry does not have the digest it was announced with")
        self._geometry = (digest, Geometry.from_arrays(arrays))
        path = self._geometry_path(digest)
        if not path.exists():
            write_atomic(path, save({name: np.ascontiguousarray(value) for name, value in arrays.items()}))

    def describe_augmentation(self, client: int, digest: str) -> dict[str, float | int]:
        """How many samples were added, and the root of their mean squared perturbation."""
        data = self.data(client, digest)
        data.measure()
        return {"num-examples": len(data), "added": data.added, "perturbation_rms": data.perturbation_rms}

    def train(self, client: int, number: int, digest: str, weights: Weights, shared: Weights) -> LocalResult:
        """One participation in round ``number``, from the global ``weights``."""
        config = self.config
        data = self.data(client, digest)
        local = Local(weights, shared, self.states.load(client, before=number))
        settings = LocalSettings(
            epochs=config.training.epochs,
            batch_size=config.training.batch_size,
            optimiser=config.training.optimiser,
            lr=config.training.lr,
            momentum=config.training.momentum,
            weight_decay=config.training.weight_decay,
        )
        model = build(config.model, dimension=data.dimension, classes=len(self.pool.source.classes))
        seeded = generator(config.seed, SHUFFLE, client, number)
        result = train(model, data, self.algorithm, local, settings, seeded)
        self.states.save(client, number, result.state)
        return result

    def examples(self, client: int, digest: str) -> float:
        """What the client's reply weighs in the average: ``federation.weights``."""
        if self.config.federation.weights == "equal":
            return 1.0
        if self.config.federation.weights == "real":
            return float(len(self.pool.partition.clients[client]))
        return float(len(self.data(client, digest)))

    def data(self, client: int, digest: str) -> AugmentedSet:
        """The client's training set, kept while there is room. ``digest`` names the geometry, '' for none."""
        key = (client, digest)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        x, y = self.pool.client(client)
        if not len(x):
            raise FedgeoError(f"client {client} has no training samples: lower federation.clients or add data")
        chosen = self.config.augmentation
        made = AugmentedSet(
            x,
            y,
            settings=Augmentation(
                kind=chosen.kind,
                target=chosen.target,
                absent=chosen.absent,
                scale=chosen.scale,
                step2=chosen.step2,
                per_prototype=chosen.per_prototype,
            ),
            geometry=self._load_geometry(digest) if digest else None,
            classes=len(self.pool.source.classes),
            seed=self.config.seed,
            client=client,
        )
        self._sets[key] = made
        while len(self._sets) > 1 and sum(s.nbytes for s in self._sets.values()) > SETS_BYTES:
            self._sets.popitem(last=False)
        return made

    def _load_geometry(self, digest: str) -> Geometry:
        if self._geometry is None or self._geometry[0] != digest:
            path = self._geometry_path(digest)
            if not path.is_file():
                raise MissingGeometry(f"missing geometry {digest}")
            self._geometry = (digest, Geometry.from_arrays(load_file(path)))
        return self._geometry[1]

    def _geometry_path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise FedgeoError("a geometry's digest must be 64 hexadecimal digits")
        return self.state / f"{digest}.safetensors"


def local_algorithm(config: Config) -> Algorithm:
    """What clients run: the method's own algorithm, or FedAvg's where the method is a server's strategy only."""
    if issubclass(algorithms.resolve(config.method.target), Algorithm):
        return algorithms.load(config.method.target, **config.method.settings)
    return FedAvg()


@functools.lru_cache(maxsize=4)
def node(config: Config, place: tuple[int, int], state: Path) -> Node:
    """The node at ``place``, kept for the next message of the same process."""
    return Node(config, place, state)


def hosted(clients: int, place: int, places: int) -> list[int]:
    """The clients of node ``place`` of ``places``: neighbours, as evenly as possible."""
    return [int(c) for c in np.array_split(np.arange(clients), places)[place]]


def array_digest(arrays: dict[str, np.ndarray]) -> str:
    """sha256 of named arrays: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


@functools.cache
def code_hash() -> str:
    """sha256 of the app's code and configuration, so that a node that runs another version is refused."""
    digest = hashlib.sha256()
    files = [ROOT / "server_app.py", ROOT / "client_app.py"]
    files += sorted((ROOT / "app").rglob("*.py")) + sorted((ROOT / "conf").rglob("*.yaml"))
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


