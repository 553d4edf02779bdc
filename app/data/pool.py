"""The simulated world: one data set, split and shared out among clients, the same in every process."""

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from app import embeddings, encoders
from app.config import Config
from app.data import partition as parts
from app.data.embedded import sklearn_digits
from app.data.partition import Partition, Split
from app.data.source import Source
from app.errors import FedgeoError


@dataclass(frozen=True)
class Pool:
    """A source, its split and its partition; embeddings are computed for the rows that are asked for."""

    config: Config
    source: Source
    split: Split
    partition: Partition
    _embedded: dict[int, np.ndarray] = field(default_factory=dict)

    def features(self, rows: np.ndarray) -> np.ndarray:
        """float32 (len(rows), p) embeddings of these rows of the source, normalised as configured."""
        if self.source.features is not None:
            raw = np.asarray(self.source.features[rows], dtype=np.float32)
        else:
            raw = embed(self.source, rows, self.config)
        return embeddings.normalise(raw, self.config.encoder.normalise)

    def client(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(x float32 (n, p), y int64 (n,)) of one client's training samples."""
        rows = self.partition.clients[number]
        if number not in self._embedded:
            self._embedded[number] = self.features(rows)
        return self._embedded[number], self.source.labels[rows]


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
