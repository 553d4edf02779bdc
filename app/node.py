"""What a node does for each client that it hosts: describe, gather statistics, augment, train.

Nothing here knows Flower. Everything that is expensive is kept for the next message of the same process, and is
rebuilt from the site's data and its state folder where the process is new.
"""

import functools
import getpass
import hashlib
import tempfile
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
from app.data.world import world
from app.errors import FedgeoError
from app.evaluation import evaluate
from app.geometry import Geometry
from app.models import build
from app.models.base import Model, Weights
from app.models.eegnet import EEGNet
from app.models.spdnet import SPDNet
from app.seeds import SHUFFLE, generator
from app.statistics import field, gather
from app.training.plain import LocalResult, LocalSettings, predict, train
from app.training.samples import TensorSet

METHOD, MODEL, MOMENTS = "method/", "model/", "moments/"  # whose a client's kept tensors are
SETS_BYTES = 2**30  # augmented sets kept between rounds; the oldest make room
ROOT = Path(__file__).resolve().parent.parent


class Node:
    """The clients of one node. ``place`` is (partition-id, num-partitions); ``state`` its folder."""

    def __init__(self, config: Config, place: tuple[int, int], state: Path) -> None:
        self.config = config
        self.world = world(config)
        self.clients = hosted(len(self.world), *place)
        self.state = state
        self.states = ClientStates(state / "clients")
        self.algorithm = local_algorithm(config)
        self._sets: OrderedDict[tuple[int, str], AugmentedSet | TensorSet] = OrderedDict()
        self._geometry: tuple[str, Geometry, np.ndarray] | None = None

    def hello(self, client: int) -> dict[str, Any]:
        """What must agree before anything is trained, and how many samples of each class there are."""
        classes = self.world.classes
        return {
            "code": code_hash(),
            "classes": list(classes),
            "facts": self.world.facts(client),
            "domain": self.world.client_domain(client),
            "counts": np.bincount(self.world.train(client).y, minlength=len(classes)).tolist(),
        }

    def statistics(self, client: int) -> dict[str, np.ndarray]:
        """The client's class statistics, packed."""
        own = self.world.train(client)
        gathered = gather(own.x, own.y, minimum=self.config.privacy.min_count)
        return gathered.to_arrays(self.config.augmentation.precision)

    def keep_geometry(self, digest: str, arrays: dict[str, np.ndarray]) -> None:
        """Check the geometry, and the number of each client's domain, and keep them under their digest."""
        if digest != array_digest(arrays):
            raise FedgeoError("the geometry does not have the digest it was announced with")
        self._geometry = (digest, *unpack_geometry(arrays))
        path = self._geometry_path(digest)
        if not path.exists():
            write_atomic(path, save({name: np.ascontiguousarray(value) for name, value in arrays.items()}))

    def describe_augmentation(self, client: int, digest: str) -> tuple[dict[str, float | int], dict[str, Any]]:
        """How many samples were added, and the root of their mean squared perturbation; and the counts by class."""
        data = self.data(client, digest)
        assert isinstance(data, AugmentedSet)
        data.measure()
        figures = {"added": data.added, "perturbed": data.perturbed, "perturbation_rms": data.perturbation_rms}
        unshaped = [data.unshaped.get(label, 0) for label in range(len(self.world.classes))]
        return figures, {"total": data.counts.tolist(), "unshaped": unshaped}

    def train(
        self, client: int, number: int, digest: str, rate: float, weights: Weights, shared: Weights
    ) -> LocalResult:
        """One participation in round ``number`` with learning rate ``rate``, from the global ``weights``."""
        config = self.config
        data = self.data(client, digest)
        kept = self.states.load(client, before=number)
        local = Local(weights, shared, unprefixed(kept, METHOD))
        settings = LocalSettings(
            epochs=config.training.epochs,
            batch_size=config.training.batch_size,
            optimiser=config.training.optimiser,
            lr=rate,
            momentum=config.training.momentum,
            weight_decay=config.training.weight_decay,
        )
        model = self.model()
        model.load_local_state(unprefixed(kept, MODEL))
        seeded = generator(config.seed, SHUFFLE, client, number)
        moments = unprefixed(kept, MOMENTS)
        result = train(model, data, self.algorithm, local, settings, seeded, moments)
        keep = prefixed(result.state, METHOD) | prefixed(model.local_state(), MODEL)
        if config.training.keep_moments:
            keep |= prefixed(result.moments, MOMENTS)
        self.states.save(client, number, keep)
        return result

    def evaluate(
        self, client: int, number: int, weights: Weights
    ) -> dict[str, dict[int, tuple[np.ndarray, float]]]:
        """After round ``number``: confusion (C, C) and summed loss of the client's own 'val' and 'test' samples.

        By domain, that is by subject for EEG.
        """
        model = self.model()
        model.load(weights)
        kept = unprefixed(self.states.load(client, before=number + 1), MODEL)
        if isinstance(model, EEGNet) and not kept:  # it has not trained yet: its own statistics, without labels
            model.calibrate(torch.from_numpy(self.world.train(client).x))
        else:
            model.load_local_state(kept)
        counted: dict[str, dict[int, tuple[np.ndarray, float]]] = {"val": {}, "test": {}}
        for part, by_domain in counted.items():
            own = self.world.held_out(part, client)
            for domain in np.unique(own.domain):
                rows = own.domain == domain
                outputs = predict(model, own.x[rows])
                scores = evaluate(outputs, own.y[rows], own.domain[rows], self.world.domains, self.world.classes)
                by_domain[int(domain)] = (scores.confusion, scores.loss * scores.samples)
        return counted

    def watch(self, client: int, number: int, weights: Weights) -> dict[str, float]:
        """In the first round: the share of SPDnet's eigenvalues that ReEig clamps, a check of unit and epsilon."""
        model = self.model()
        if not isinstance(model, SPDNet) or number > 1:
            return {}
        model.load(weights)
        return {"clamped_fraction": model.clamped_fraction(torch.from_numpy(self.world.train(client).x))}

    def examples(self, client: int, digest: str) -> float:
        """What the client's reply weighs in the average: ``federation.weights``."""
        if self.config.federation.weights == "equal":
            return 1.0
        if self.config.federation.weights == "real":
            return float(len(self.world.train(client)))
        return float(len(self.data(client, digest)))

    def model(self) -> Model:
        """A fresh model of the configured kind."""
        kept = self.algorithm.keeps_manifold
        return build(self.config.model, self.world.inputs, len(self.world.classes), stiefel=kept)

    def data(self, client: int, digest: str) -> AugmentedSet | TensorSet:
        """The client's training set, kept while there is room. ``digest`` names the geometry, '' for none."""
        key = (client, digest)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        own = self.world.train(client)
        if not len(own):
            raise FedgeoError(f"client {client} has no training samples: lower federation.clients or add data")
        chosen = self.config.augmentation
        if self.config.model.kind != "linear":
            self._sets[key] = TensorSet(own.x, own.y)
            return self._sets[key]
        made = AugmentedSet(
            own.x,
            own.y,
            settings=Augmentation(
                kind=chosen.kind,
                target=chosen.target,
                absent=chosen.absent,
                scale=chosen.scale,
                step2=chosen.step2,
                per_prototype=chosen.per_prototype,
            ),
            geometry=self._load_geometry(digest)[0] if digest else None,
            classes=len(self.world.classes),
            seed=self.config.seed,
            client=client,
            own=self._own(client, digest) if chosen.step2 and digest else None,
        )
        self._sets[key] = made
        while len(self._sets) > 1 and sum(s.nbytes for s in self._sets.values()) > SETS_BYTES:
            self._sets.popitem(last=False)
        return made

    def _own(self, client: int, digest: str) -> set[int]:
        """The clients of this one's domain, itself among them: their prototypes are not foreign to it."""
        domains = self._load_geometry(digest)[1]
        if client >= len(domains):
            raise FedgeoError(f"client {client} is not among the {len(domains)} clients that the geometry is for")
        same = np.flatnonzero((domains == domains[client]) & (domains >= 0))
        return {client, *same.tolist()}

    def _load_geometry(self, digest: str) -> tuple[Geometry, np.ndarray]:
        if self._geometry is None or self._geometry[0] != digest:
            path = self._geometry_path(digest)
            if not path.is_file():
                raise FedgeoError(f"the node lacks the geometry {digest} that the round needs")
            self._geometry = (digest, *unpack_geometry(load_file(path)))
        return self._geometry[1:]

    def _geometry_path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise FedgeoError("a geometry's digest must be 64 hexadecimal digits")
        return self.state / f"{digest}.safetensors"


def unpack_geometry(arrays: dict[str, np.ndarray]) -> tuple[Geometry, np.ndarray]:
    """The geometry, and int64 (clients,) the number of each client's domain, -1 where it is mixed."""
    return Geometry.from_arrays(arrays), field(arrays, "domains", (None,), "integer", "geometry")


def local_algorithm(config: Config) -> Algorithm:
    """What clients run: the method's own algorithm, or FedAvg's where the method is a server's strategy only."""
    if issubclass(algorithms.resolve(config.method.target), Algorithm):
        return algorithms.load(config.method.target, **config.method.settings)
    return FedAvg()


def state_folder(config: Config, run_id: int) -> Path:
    """Where simulated nodes keep geometry and their clients' state: in the run directory where that is known."""
    if config.run_dir:
        return Path(config.run_dir) / "state"
    return Path(tempfile.gettempdir()) / f"fedgeo-{getpass.getuser()}-{run_id}"


@functools.lru_cache(maxsize=4)
def node(config: Config, place: tuple[int, int], state: Path) -> Node:
    """The node at ``place``, kept for the next message of the same process."""
    return Node(config, place, state)


def prefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors with ``prefix`` before each name."""
    return {prefix + name: value for name, value in weights.items()}


def unprefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


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


