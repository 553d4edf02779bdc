"""Domain shift: what sets the domains apart, fitted from class means alone.

The mean of class c in domain d is modelled as mu_{c,d} = m_c + delta_d. A client can then carry its own samples into
another domain, x + delta_{d'} - delta_d, and nothing but means is shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError
from .class_geometry import Geometry, Shape, geometry
from .class_statistics import ClassStatistics, field, packed_dtype, refuse

PRIOR_COUNT = 3  # a cell of n samples weighs n / (n + 3): few samples make a noisy mean
RIDGE = 1e-3  # on the deltas; it also fixes what m and delta could exchange


@dataclass(frozen=True, eq=False)
class DomainShift:
    """classes: int64 (m,), ascending. centres: m_c, float64 (m, p). deltas: delta_d, float64 (D, p)."""

    classes: np.ndarray
    centres: np.ndarray
    deltas: np.ndarray


def fit(
    classes: np.ndarray, domains: np.ndarray, counts: np.ndarray, means: np.ndarray, ridge: float = RIDGE
) -> DomainShift:
    """Least squares over the cells that exist.

    min sum_{c,d} n/(n+3) |mu_{c,d} - m_c - delta_d|^2 + ridge sum_d |delta_d|^2.

    classes, domains, counts: int64 (q,), one entry a cell. means: (q, p). Domains are numbered 0..D-1, and every number
    must occur. Returns float64. Raises FedgeoError for a cell given twice, or no cells.
    """
    if not len(classes):
        raise FedgeoError("there are no class means to fit domain shifts to")
    cells = set(zip(classes.tolist(), domains.tolist(), strict=True))
    if len(cells) != len(classes):
        raise FedgeoError("a class has two means in one domain: merge them first")
    labels, rows = np.unique(classes, return_inverse=True)
    m, d = len(labels), int(domains.max()) + 1
    design = np.zeros((len(classes), m + d))
    design[np.arange(len(classes)), rows] = 1
    design[np.arange(len(classes)), m + domains] = 1
    weights = counts / (counts + PRIOR_COUNT)
    penalty = np.diag(np.r_[np.zeros(m), np.full(d, ridge)])
    normal = design.T @ (weights[:, None] * design) + penalty
    solved = np.linalg.solve(normal, design.T @ (weights[:, None] * means.astype(np.float64)))
    return DomainShift(labels.astype(np.int64), solved[:m], solved[m:])


@dataclass(frozen=True, eq=False)
class Transfer:
    """What the server sends for ``augmentation=shift``: the centres, the deltas, and where the clients stand.

    geometry: its means are the centres m_c; its shapes have rank 0 unless noise is wanted; with prototypes for step 2.
    deltas: delta_d, float64 (D, p). domains: int64 (clients,), the domain of each client, -1 for one that is unknown.
    """

    geometry: Geometry
    deltas: np.ndarray
    domains: np.ndarray

    def to_arrays(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """The fields by name, to be sent. dtype: of the floats."""
        arrays = self.geometry.to_arrays(dtype)
        return arrays | {"deltas": self.deltas.astype(packed_dtype(dtype)), "domains": self.domains}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], origin: str = "domain shifts") -> "Transfer":
        """What ``to_arrays`` gave, checked, in float64. Raises FedgeoError, which begins with ``origin``."""
        received = Geometry.from_arrays(arrays, origin)
        deltas = field(arrays, "deltas", (None, received.dimension), "float", origin).astype(np.float64)
        domains = field(arrays, "domains", (None,), "integer", origin)
        refuse(len(deltas) < 2, origin, "there must be at least two domains")
        refuse(bool(((domains < -1) | (domains >= len(deltas))).any()), origin, "domains must be rows of deltas, or -1")
        owners = received.prototype_clients
        known = bool((owners < len(domains)).all()) and bool((domains[owners] >= 0).all())
        refuse(not known, origin, "every prototype's owner must have a domain")
        refuse(len(deltas) > domains.max(initial=-1) + 1, origin, "every delta must be of some client's domain")
        return cls(received, deltas, domains)


def transfer(
    parts: Mapping[int, ClassStatistics],
    domains: np.ndarray,
    *,
    shapes: ClassStatistics | None = None,
    explained: float = 0.95,
    max_rank: int | None = None,
    prototypes: bool = False,
    rank_share: float = 1.0,
) -> Transfer:
    """Fit the shifts to the clients' statistics, of which counts and means alone are read.

    parts: by client. domains: int64 (clients,), each client's domain, numbered 0..D-1. shapes: merged statistics with
    covariances, where noise is to be drawn along their shapes. prototypes: send the clients' means along (step 2).
    Raises FedgeoError for fewer than two domains, or a client whose samples are of several domains or unknown.
    """
    check_shift([int(domains[client]) if domains[client] >= 0 else None for client in sorted(parts)])
    entries = [
        (int(label), int(domains[client]), client, int(count), mean)
        for client, part in sorted(parts.items())
        for label, count, mean in zip(part.classes, part.counts, part.means, strict=True)
    ]
    if not entries:
        raise FedgeoError("augmentation=shift: no client shared any class mean")
    labels, homes, owners, counts, means = (np.array(column) for column in zip(*entries, strict=True))
    cells, row = np.unique(np.stack([labels, homes], axis=1), axis=0, return_inverse=True)
    total = np.bincount(row, counts)
    sums = np.zeros((len(cells), means.shape[1]))
    np.add.at(sums, row, counts[:, None] * means)
    found = fit(cells[:, 0], cells[:, 1], total, sums / total[:, None])
    deltas = np.zeros((int(domains.max()) + 1, means.shape[1]))
    deltas[: len(found.deltas)] = found.deltas  # a domain that shared nothing is taken for the mean of all
    if shapes is None:
        drawn = tuple(Shape(np.empty(0), np.empty((means.shape[1], 0)), 0.0) for _ in found.classes)
    else:
        drawn = geometry(shapes, explained, max_rank, rank_share=rank_share).shapes
    order = np.lexsort((owners, labels)) if prototypes else np.empty(0, dtype=np.int64)
    sent = Geometry(
        found.classes,
        np.bincount(labels, counts)[found.classes].astype(np.int64),
        found.centres,
        drawn,
        labels[order],
        owners[order],
        means[order],
    )
    return Transfer(sent, deltas, domains)


def check_shift(domains: Sequence[str | int | None]) -> None:
    """Refuse what has no shift to learn: one domain, or clients (None) whose samples are of several domains."""
    if None in domains:
        raise FedgeoError(
            "augmentation=shift: a client holds a mixture of domains: give each client one, with "
            "federation.partition=domain or domain_dirichlet"
        )
    if len(set(domains)) < 2:
        raise FedgeoError(
            f"augmentation=shift: all clients hold one domain ({next(iter(domains), None)}), so that there is no other "
            "to translate into: choose augmentation=ggeur, or give data with several domains"
        )
