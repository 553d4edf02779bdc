"""Domain shift: what sets the domains apart, fitted from class means alone.

The mean of class c in domain d is modelled as mu_{c,d} = m_c + delta_d. A client can then carry its own samples into
another domain, x + delta_{d'} - delta_d, and nothing but means is shared.
"""

from dataclasses import dataclass

import numpy as np

from app.errors import FedgeoError

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
