"""The simulated world: one data set, split and shared out among clients, the same in every process."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app import embeddings, encoders
from app.config import Config
from app.data import partition as parts
from app.data.embedded import sklearn_digits
from app.data.partition import Partition, Split
from app.data.source import Source
from app.data.world import Samples
from app.errors import FedgeoError


@dataclass(frozen=True, eq=False)
class Pool:
    """A source, its split and its partition: the world of images. Rows are embedded when they are asked for."""

    config: Config
    source: Source
    split: Split
    partition: Partition
    _clients: dict[int, Samples] = field(default_factory=dict)

    central = True  # the server holds validation and test samples

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def domains(self) -> tuple[str, ...]:
        return self.source.domains

    @functools.cached_property
    def inputs(self) -> dict[str, int]:
        return {"dimension": self.features(self.split.test[:1]).shape[1]}

    def __len__(self) -> int:
        return len(self.partition)

    def client_domain(self, client: int) -> str | None:
        return self.partition.domains[client]

    def train(self, client: int) -> Samples:
        if client not in self._clients:
            self._clients[client] = self.samples(self.partition.clients[client])
        return self._clients[client]

    def held_out(self, part: str, client: int | None) -> Samples:
        if client is not None:
            raise FedgeoError(f"client {client} holds no {part} samples of its own: the server does")
        return self.samples(self.split.val if part == "val" else self.split.test)

    def facts(self, client: int) -> dict[str, Any]:
        return {"dimension": int(self.train(client).x.shape[1])}

    def partition_json(self) -> str:
        return self.partition.to_json(self.source, self.split)

    def samples(self, rows: np.ndarray) -> Samples:
        """The samples of these rows of the source."""
        return Samples(self.features(rows), self.source.labels[rows], self.source.domain[rows])

    def features(self, rows: np.ndarray) -> np.ndarray:
        """float32 (len(rows), p) embeddings of these rows of the source, normalised as configured."""
        if self.source.features is not None:
            raw = np.asarray(self.source.features[rows], dtype=np.float32)
        else:
            raw = embed(self.source, rows, self.config)
        return embeddings.normalise(raw, self.config.encoder.normalise)


@functools.lru_cache(maxsize=4)
def pool(config: Config) -> Pool:
    """The data set that ``config`` names, split and shared out. Raises FedgeoError for what cannot be had."""
    whole = load_source(config)
    federation = config.federation
    if federation.partition_file is not None:
        path = Path(federation.partition_file)
        if not path.is_file():
            raise FedgeoError(f"federation.partition_file={path}: there is no such file")
        partition, split = Partition.from_json(path.read_text(), whole)
        return Pool(config, whole, split, partition)
    split = parts.split(
        whole, test_fraction=config.data.test_fraction, val_fraction=config.data.val_fraction, seed=config.seed
    )
    rows = parts.subsample(split.train, whole.labels, whole.domain, config.data.fraction, config.seed)
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
    return Pool(config, whole, split, partition)


def load_source(config: Config) -> Source:
    """The data set that ``config.data`` describes."""
    kind = config.data.kind
    if kind == "sklearn_digits":
        return sklearn_digits()
    raise FedgeoError(f"data.kind={kind}: there is no such kind of data")


def embed(source: Source, rows: np.ndarray, config: Config) -> np.ndarray:
    """Embeddings of these rows by the configured encoder, through the cache."""
    encoder = encoders.build(config.encoder.name, **config.encoder.settings)
    assert source.images is not None
    return embeddings.embed(
        source.images, rows, encoder, cache=cache_dir(config), batch_size=config.encoder.batch_size
    )


def cache_dir(config: Config) -> Path:
    """Where embeddings and processed trials are kept between runs."""
    return Path(config.cache_dir or Path.home() / ".cache" / "fedgeo").expanduser()
