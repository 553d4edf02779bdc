"""The simulated data set of images: one data set, split and shared out among clients, the same in every process."""

import functools
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...augmentation import registry as augmentation
from ...common.errors import FedgeoError
from ...config.schema import Config, Encoder, Federation, ImageData
from ...encoders import base, embedding_cache, registry
from .. import partition as parts
from .. import partition_file
from ..cache_folder import cache_dir
from ..federated_dataset import Samples
from ..held_back import held_back
from ..own_mix import own_test
from ..partition import Partition, Split
from ..source import Source
from .bit_depth import note, with_bit_depth
from .features import features
from .folders import domain_folder, image_folder
from .published import IMAGE_SETS
from .shared import shared_images
from .sklearn_digits import sklearn_digits

log = logging.getLogger(__name__)

LOADERS: Mapping[str, Callable[..., Source]] = {
    "sklearn_digits": sklearn_digits,
    "features": features,
    "image_folder": image_folder,
    "domain_folder": domain_folder,
    **IMAGE_SETS,
}
OWN = {  # what data.path must be for the user's own data
    "features": "an npz file with <domain>_X and <domain>_y",
    "image_folder": "a folder with one folder of images a class",
    "domain_folder": "a folder with one folder a domain, and in it one of images a class",
}
LOG_SECONDS = 5.0  # between two lines about the progress of encoding


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A source, its split and its partition: the data set of images. Rows are embedded when they are needed.

    bit_depth: of the values in 16-bit files; None where there are none.
    """

    config: Config
    source: Source
    split: Split
    partition: Partition
    bit_depth: int | None = None
    _clients: dict[int, Samples] = field(default_factory=dict)

    @property
    def central(self) -> tuple[str, ...]:
        federation = self.config.federation
        held = {"val": federation.validation == "server", "test": federation.test == "shared"}
        return tuple(part for part, by_server in held.items() if by_server)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def domains(self) -> tuple[str, ...]:
        return self.source.domains

    @functools.cached_property
    def inputs(self) -> dict[str, int]:
        return {"dimension": self.dimension}

    @property
    def dimension(self) -> int:
        """p, the dimension of the embeddings."""
        if self.source.features is not None:
            return int(self.source.features.shape[1])
        return encoder(self.config).dimension

    def __len__(self) -> int:
        return len(self.partition)

    def client_domain(self, client: int) -> str | None:
        return self.partition.domains[client]

    def train(self, client: int) -> Samples:
        if client not in self._clients:
            self._clients[client] = self.samples(self._rows("train", client), f"client {client}")
        return self._clients[client]

    def held_out(self, part: str, client: int | None) -> Samples:
        if (client is None) != (part in self.central):
            holder = "the server" if part in self.central else "each client"
            raise FedgeoError(f"{holder} holds the {part} samples, {client=} was asked for")
        if client is not None:
            rows = self._rows("val", client) if part == "val" else self._own_test(client)
            return self.samples(rows, f"{part} samples of client {client}")
        return self.samples(self.split.val if part == "val" else self.split.test, f"{part} samples")

    def _rows(self, part: str, client: int) -> np.ndarray:
        """The client's rows that it trains on, or those that it keeps back, where it validates."""
        rows, config = self.partition.clients[client], self.config
        fraction = 0.0 if "val" in self.central else config.data.val_fraction
        kept = held_back(self.source.labels[rows], fraction, config.seed, client)
        return rows[kept if part == "val" else ~kept]

    def _own_test(self, client: int) -> np.ndarray:
        """The client's test rows: of its own domain where it has one, with its own class shares."""
        rows, domain = self.split.test, self.partition.domains[client]
        if domain is not None:
            rows = rows[self.source.domain[rows] == self.domains.index(domain)]
        trained = self.source.labels[self.partition.clients[client]]
        return rows[own_test(self.source.labels[rows], trained, self.config.seed, client)]

    def facts(self, client: int) -> dict[str, Any]:
        """What all clients must have alike."""
        facts: dict[str, Any] = {"dimension": self.dimension, "normalisation": self.config.encoder.normalise}
        if self.source.images is not None:
            facts["encoder"] = encoder(self.config).fingerprint
        if self.bit_depth is not None:
            facts["bit depth"] = self.bit_depth
        return facts

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """What of the images may change what is learned, or how good it seems, a line each."""
        assert isinstance(self.config.data, ImageData)
        return (*note(self.bit_depth, self.config.data.bit_depth), *self._shared())

    def _shared(self) -> list[str]:
        images, tested = self.source.images, self.split.test
        if images is None:
            return []
        trained = np.unique(np.concatenate([*self.partition.clients, self.split.val]))
        pairs = shared_images(images, trained, tested, cache_dir(self.config))
        if not pairs:
            return []
        one, other = (self._name(index) for index in pairs[0])
        return [
            f"{len(pairs)} of {len(tested)} test images are also trained or validated on, so the score is too high: "
            f"{one} has the pixels of {other}"
        ]

    def _name(self, index: int) -> str:
        """An image's name, below the data's folder where it lies there."""
        assert self.source.images is not None
        name, root = self.source.images.name(index), self.config.data.path
        return os.path.relpath(name, Path(root).expanduser().resolve()) if root and os.path.isabs(name) else name

    def partition_json(self) -> str:
        return partition_file.to_json(self.partition, self.source, self.split)

    def samples(self, rows: np.ndarray, whose: str) -> Samples:
        """The samples of these rows of the source. ``whose`` they are is logged while they are encoded."""
        return Samples(self.features(rows, whose), self.source.labels[rows], self.source.domain[rows])

    def features(self, rows: np.ndarray, whose: str = "samples") -> np.ndarray:
        """float32 (len(rows), p) embeddings of these rows of the source, normalised as configured."""
        if self.source.features is not None:
            raw = np.asarray(self.source.features[rows], dtype=np.float32)
        else:
            raw = embed(self.source, rows, self.config, EncodingProgress(whose))
        return embedding_cache.normalise(raw, self.config.encoder.normalise)


class EncodingProgress:
    """Logs, now and then, how far encoding has come; nothing where all embeddings lie in the cache."""

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.logged = time.monotonic()
        self.begun = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total and not self.begun:
            return
        if not self.begun or done == total or now - self.logged > LOG_SECONDS:
            self.begun, self.logged = True, now
            log.info("encoding %s: %d of %d images", self.whose, done, total)


def image_dataset(config: Config) -> ImageDataset:
    """The data set that ``config`` names, split and shared out. Raises FedgeoError for what cannot be had.

    Runs of one process that differ in what data do not depend on share it, where a file tells that it is the same.
    """
    assert isinstance(config.data, ImageData)
    path = Path(config.data.path).expanduser() if config.data.path else None
    if config.federation.partition_file or not (config.data.name == "sklearn_digits" or (path and path.is_file())):
        return dataset_of(Wanted(config, config))
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path else ()
    parts = (config.data, config.encoder, config.federation, config.augmentation)
    key = (*(part.model_dump_json() for part in parts), config.seed, config.device, config.cache_dir, stamp)
    return dataset_of(Wanted(key, config))


@dataclass(frozen=True)
class Wanted:
    """A configuration by what the data depend on: one ``key``, one data set."""

    key: Any
    config: Config = field(compare=False)


@functools.lru_cache(maxsize=4)
def dataset_of(wanted: Wanted) -> ImageDataset:
    config = wanted.config
    assert isinstance(config.data, ImageData)
    whole = load_source(config.data, config.federation)
    whole, depth = with_bit_depth(whole, config.data.bit_depth, cache_dir(config))
    federation = config.federation
    if federation.partition_file is not None:
        path = Path(federation.partition_file)
        if not path.is_file():
            raise FedgeoError(f"federation.partition_file={path}: there is no such file")
        partition, split = partition_file.from_json(path.read_text(), whole)
        return _checked(ImageDataset(config, whole, split, partition, depth))
    val_fraction = 0.0 if federation.validation == "clients" else config.data.val_fraction
    split = parts.split(whole, test_fraction=config.data.test_fraction, val_fraction=val_fraction, seed=config.seed)
    rows = parts.subsample(split.train, whole.labels, whole.domain, federation.fraction, config.seed)
    partition = parts.partition(
        whole,
        rows,
        kind=federation.partition,
        clients=federation.clients,
        beta=federation.beta,
        min_per_client=federation.min_per_client,
        min_per_class=federation.min_per_class,
        seed=config.seed,
    )
    return _checked(ImageDataset(config, whole, split, partition, depth))


def _checked(made: ImageDataset) -> ImageDataset:
    """Refuse, before anything is encoded, what cannot be done with this partition."""
    augmentation.load(made.config.augmentation).check_domains(made.partition.domains)
    return made


def load_source(data: ImageData, federation: Federation) -> Source:
    """The data set that ``data`` describes, whole; ``federation.beta`` names the published split of Office-Home-LDS."""
    if data.name not in LOADERS:
        raise FedgeoError(f"data.name={data.name}: must be one of {', '.join(LOADERS)}")
    loader = LOADERS[data.name]
    taken = inspect.signature(loader).parameters
    if unknown := sorted(data.settings.keys() - taken.keys()):
        raise FedgeoError(f"data.{unknown[0]}: data={data.name} has no such setting")
    if data.name in OWN and data.path is None:
        raise FedgeoError(f"data.path is not set: data={data.name} needs {OWN[data.name]}")
    if data.settings.get("published") and federation.partition != "domain":
        raise FedgeoError(
            f"federation.partition={federation.partition}: data.published=true is split already, each domain for one "
            "client: set federation.partition=domain"
        )
    offered = {"path": data.path, "download": data.download, "beta": federation.beta, **data.settings}
    return loader(**{name: value for name, value in offered.items() if name in taken})


def embed(source: Source, rows: np.ndarray, config: Config, progress: Callable[[int, int], None]) -> np.ndarray:
    """Embeddings of these rows by the configured encoder, through the cache; float32, not normalised."""
    assert source.images is not None
    return embedding_cache.embed(
        source.images,
        rows,
        encoder(config),
        cache=cache_dir(config),
        batch_size=config.encoder.batch_size,
        progress=progress,
    )


def encoder(config: Config) -> base.Encoder:
    """The configured encoder, made once a process."""
    return _encoder(config.encoder, config.device)


@functools.lru_cache(maxsize=2)
def _encoder(chosen: Encoder, device: str) -> base.Encoder:
    made = registry.build(chosen.name, device=device, **chosen.settings)
    mark = made.fingerprint[:12]
    log.info("encoder %s: %d dimensions, %s, fingerprint %s", made.name, made.dimension, made.precision, mark)
    return made
