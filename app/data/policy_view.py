"""What of a client's samples a policy lets it report: whole classes are left out, test samples too."""

import zlib
from dataclasses import dataclass, field

import numpy as np

from ..config.privacy import scoring_step, shared_classes, smallest_reported
from ..config.schema import Privacy
from .federated_dataset import DatasetWrapper, FederatedDataset, Samples


def policy_view(inner: FederatedDataset, privacy: Privacy, seed: int, by_name: bool = False) -> FederatedDataset:
    """``inner`` as far as its clients may report it; itself where one sample is enough.

    seed: of which samples are scored. by_name: whether that goes by the classes' names, for runs that number them in
    orders of their own; else by their numbers.
    """
    return PolicyView(inner, privacy, seed, by_name) if smallest_reported(privacy) > 1 else inner


@dataclass(frozen=True, eq=False)
class PolicyView(DatasetWrapper):
    """A data set without the classes of which a client has too few training samples.

    Of the test and validation samples of a class and domain that a client holds, as many are scored as are reported:
    the same ones in every round, drawn from ``seed``, and none of too few.
    Those that the server holds are not anybody's.
    """

    privacy: Privacy
    seed: int
    by_name: bool = False
    _reported: dict[int, np.ndarray] = field(default_factory=dict)

    def train(self, client: int) -> Samples:
        found = self.inner.train(client)
        return _only(found, self.reported_classes(client, found)[found.y])

    def held_out(self, part: str, client: int | None) -> Samples:
        found = self.inner.held_out(part, client)
        return found if client is None else _only(found, self._scored(found, self.reported_classes(client)))

    def reported_classes(self, client: int, training: Samples | None = None) -> np.ndarray:
        """bool (C,): the classes that the client reports."""
        if client not in self._reported:
            labels = (training or self.inner.train(client)).y
            self._reported[client] = shared_classes(np.bincount(labels, minlength=len(self.classes)), self.privacy)
        return self._reported[client]

    def _scored(self, found: Samples, classes: np.ndarray) -> np.ndarray:
        """bool (n,): the samples that are scored."""
        chosen, step = np.zeros(len(found), dtype=bool), scoring_step(self.privacy)
        for domain in np.unique(found.domain):
            for label in np.flatnonzero(classes):
                rows = np.flatnonzero((found.domain == domain) & (found.y == label))
                number = zlib.crc32(self.classes[label].encode()) if self.by_name else int(label)
                rng = np.random.default_rng([self.seed, int(domain), number])
                chosen[rng.permutation(rows)[: len(rows) // step * step]] = True
        return chosen


def _only(found: Samples, rows: np.ndarray) -> Samples:
    """The samples where ``rows``, bool (n,), holds."""
    return found if rows.all() else Samples(found.x[rows], found.y[rows], found.domain[rows])
