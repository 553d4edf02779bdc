"""How much an augmented client would train, from counts alone: what ``steps=equal`` holds every arm to."""

from collections.abc import Sequence

import numpy as np

from ..common.errors import FedgeoError
from .sources import Filling


def planned_counts(counts: np.ndarray, settings: Filling, domains: Sequence[str | None]) -> np.ndarray:
    """The samples of each class that each client would hold once augmented, int64 (K, C), whatever the kind.

    counts: int (K, C), the real samples. domains: each client's, None where it is mixed; a prototype of one's own
    domain is not foreign. Equal to ``AugmentedSet.counts`` of this filling: a held class is filled up to the target,
    with ``absent=global_mean`` one that only others hold too, and each foreign prototype of step 2 adds
    ``per_prototype``.
    """
    counts = np.asarray(counts, dtype=np.int64)
    if counts.ndim != 2 or len(domains) != len(counts) or (counts < 0).any():
        raise FedgeoError(f"counts must be (clients, classes) with one domain a client, not {counts.shape}")
    held = counts > 0
    filled = held | held.any(axis=0) if settings.absent == "global_mean" else held
    planned = np.where(filled, np.maximum(counts, settings.target), counts)
    if settings.step2:
        for client, domain in enumerate(domains):
            own = [k == client or (domain is not None and other == domain) for k, other in enumerate(domains)]
            planned[client] += settings.per_prototype * held[~np.array(own)].sum(axis=0)
    return planned


def planned_steps(planned: np.ndarray, epochs: int, batch_size: int) -> np.ndarray:
    """The gradient steps a round of clients with ``planned`` samples, int64 (K,): epochs * ceil(total / batch)."""
    return epochs * -(-np.asarray(planned).sum(axis=1) // batch_size)
