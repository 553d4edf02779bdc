"""FedFA as the GGEUR paper describes it: new samples from a Gaussian centred on the prototype of each class.

That paper takes each class's embeddings for a Gaussian and draws round the class prototypes. Built here: a client's
prototype of a class it holds is its own mean, of another one the merged mean, in step 2 also the means of other
domains; the Gaussian has the merged variance of every dimension and no covariances. So it differs from GGEUR in the
anchors (prototypes, not samples) and in knowing nothing of the shape. The FedFA that is cited there (Zhou and
Konukoglu, 2023) is another method: it perturbs the feature statistics inside a network while it trains, which frozen
embeddings have no place for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError
from .class_statistics import ByClass, class_labels, field, refuse


@dataclass(frozen=True, eq=False)
class Diagonal:
    """A Gaussian's spread along the axes, without rotation. eigenvalues: float64 (p,), the variance of each."""

    eigenvalues: np.ndarray

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)


@dataclass(frozen=True, eq=False)
class Gaussians(ByClass):
    """Each class's count, mean and variances, of one client or merged; with the clients' prototypes when sent down.

    classes: int64 (m,), ascending and unique. counts: int64 (m,). means, variances: float64 (m, p), divisor n.
    prototype_classes, prototype_clients: int64 (q,), the class and owner of each row of prototype_means (q, p).
    """

    variances: np.ndarray
    prototype_classes: np.ndarray
    prototype_clients: np.ndarray
    prototype_means: np.ndarray

    @property
    def shapes(self) -> tuple[Diagonal, ...]:
        """What ``AugmentedSet`` perturbs along, a class each."""
        return tuple(Diagonal(row) for row in self.variances)

    def trace(self, row: int) -> float:
        return float(self.variances[row].sum())

    def only(self, keep: np.ndarray) -> "Gaussians":
        """The rows where ``keep``, bool (m,), holds, and their prototypes."""
        owned = np.isin(self.prototype_classes, self.classes[keep])
        return Gaussians(
            self.classes[keep],
            self.counts[keep],
            self.means[keep],
            self.variances[keep],
            self.prototype_classes[owned],
            self.prototype_clients[owned],
            self.prototype_means[owned],
        )

    def to_arrays(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """The fields by name, to be sent; rows of several clients may be joined along axis 0. dtype: of the floats."""
        return {
            "classes": self.classes,
            "counts": self.counts,
            "means": self.means.astype(dtype),
            "variances": self.variances.astype(dtype),
            "prototype_classes": self.prototype_classes,
            "prototype_clients": self.prototype_clients,
            "prototype_means": self.prototype_means.astype(dtype),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], origin: str = "gaussians") -> "Gaussians":
        """What ``to_arrays`` gave, checked, in float64. Raises FedgeoError, which begins with ``origin``."""
        classes = class_labels(arrays, "classes", origin)
        counts = field(arrays, "counts", classes.shape, "integer", origin)
        refuse(bool((counts < 1).any()), origin, "counts must be at least 1")
        means = field(arrays, "means", (len(classes), None), "float", origin)
        variances = field(arrays, "variances", means.shape, "float", origin)
        refuse(bool((variances < 0).any()), origin, "variances must not be negative")
        owned = field(arrays, "prototype_classes", (None,), "integer", origin)
        clients = field(arrays, "prototype_clients", owned.shape, "integer", origin)
        refuse(bool((owned < 0).any() or (clients < 0).any()), origin, "prototypes must count from 0")
        prototypes = field(arrays, "prototype_means", (len(owned), means.shape[1]), "float", origin)
        means, variances, prototypes = (array.astype(np.float64) for array in (means, variances, prototypes))
        return cls(classes, counts, means, variances, owned, clients, prototypes)


def estimate(x: np.ndarray, y: np.ndarray) -> Gaussians:
    """A client's own Gaussians. x: (n, p), y: int (n,)."""
    classes, counts = np.unique(y, return_counts=True)
    classes, counts = classes.astype(np.int64), counts.astype(np.int64)
    means, variances = (np.empty((len(classes), x.shape[1])) for _ in range(2))
    for row, label in enumerate(classes):
        samples = x[y == label].astype(np.float64)
        means[row], variances[row] = samples.mean(axis=0), samples.var(axis=0)
    return _plain(classes, counts, means, variances)


def merge(parts: Mapping[int, Gaussians], between: bool = True, prototypes: bool = False) -> Gaussians:
    """The clients' Gaussians as one, exactly: the diagonal of Eq. 4. parts: by client.

    ``between=False`` leaves out the scatter of the clients' means. ``prototypes``: send the clients' means along.
    """
    if not parts:
        raise FedgeoError("there are no class statistics to merge: at least one client must send some")
    classes = np.unique(np.concatenate([part.classes for part in parts.values()]))
    p = next(iter(parts.values())).dimension
    if any(part.dimension != p for part in parts.values()):
        raise FedgeoError("the clients' statistics differ in dimension: use one encoder")
    counts = np.zeros(len(classes), dtype=np.int64)
    means, variances = np.empty((len(classes), p)), np.empty((len(classes), p))
    owners: list[tuple[int, int, np.ndarray]] = []
    for at, label in enumerate(classes):
        held = [(client, part, row) for client, part in parts.items() if (row := part.row_of(int(label))) is not None]
        n = np.array([part.counts[row] for _, part, row in held])
        share = n / n.sum()
        own = np.stack([part.means[row] for _, part, row in held])
        counts[at], means[at] = n.sum(), share @ own
        variances[at] = share @ np.stack([part.variances[row] for _, part, row in held])
        if between:
            variances[at] += share @ np.square(own - means[at])
        owners += [(int(label), client, part.means[row]) for client, part, row in held if prototypes]
    return _plain(classes, counts, means, variances, owners)


def _plain(
    classes: np.ndarray,
    counts: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    owners: Sequence[tuple[int, int, np.ndarray]] = (),
) -> Gaussians:
    """Gaussians with prototypes from (class, client, mean)."""
    return Gaussians(
        classes,
        counts,
        means,
        variances,
        np.array([label for label, *_ in owners], dtype=np.int64),
        np.array([client for _, client, _ in owners], dtype=np.int64),
        np.stack([mean for *_, mean in owners]) if owners else np.empty((0, means.shape[1])),
    )
