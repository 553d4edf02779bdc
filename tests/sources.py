"""Sources made of labels and domains alone, and whether two partitions of one are the same."""

import numpy as np

from app.data.partition import Partition
from app.data.source import UNSET, Source


def make_source(labels: np.ndarray, domain: np.ndarray | None = None, parts: np.ndarray | None = None) -> Source:
    labels = np.asarray(labels, dtype=np.int64)
    domain = np.zeros_like(labels) if domain is None else np.asarray(domain, dtype=np.int64)
    return Source(
        name="trial",
        classes=tuple(f"class{c}" for c in range(labels.max() + 1)),
        domains=tuple(f"domain{d}" for d in range(domain.max() + 1)),
        labels=labels,
        domain=domain,
        split=np.full(len(labels), UNSET, dtype=np.int8) if parts is None else parts.astype(np.int8),
        features=np.zeros((len(labels), 1)),
    )


def random_source(n: int, classes: int, domains: int, seed: int = 0) -> Source:
    """Every class and every domain occurs, as each is dealt out in turn before it is shuffled."""
    rng = np.random.default_rng(seed)
    return make_source(rng.permutation(np.arange(n) % classes), rng.permutation(np.arange(n) % domains))


def same(left: Partition, right: Partition) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left.clients, right.clients))
