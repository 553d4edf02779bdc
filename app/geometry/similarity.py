"""How alike the same class's shapes are in different domains (the paper's Figure 6), as figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from .class_geometry import geometry, similarity_matrix
from .class_statistics import ClassStatistics, merge

LEADING = 5  # eigenvectors that the paper's similarity takes


@dataclass(frozen=True, eq=False)
class DomainSimilarity:
    """The similarity (Eq. 3) of every class's shape in one domain to every one's in another.

    labels: int64 (m,), the classes that have a shape of full rank (``LEADING``) in both domains, in rows and
    columns alike. matrix: float64 (m, m), 0 to LEADING, rows of the first domain.
    """

    domains: tuple[str, str]
    labels: np.ndarray
    matrix: np.ndarray

    @property
    def same(self) -> float:
        """The mean similarity of a class to itself: the diagonal."""
        return float(self.matrix.diagonal().mean())

    @property
    def other(self) -> float:
        """The mean similarity of two different classes; NaN where there is one class only."""
        off = ~np.eye(len(self.labels), dtype=bool)
        return float(self.matrix[off].mean()) if off.any() else float("nan")

    @property
    def nearest(self) -> float:
        """The share of the first domain's classes whose most similar shape in the other is their own."""
        return float((self.matrix.argmax(axis=1) == np.arange(len(self.labels))).mean())

    def record(self) -> dict[str, Any]:
        """The figures as plain values; all similarities as shares of the greatest possible."""
        return {
            "domains": list(self.domains),
            "classes": len(self.labels),
            "same_class": self.same / LEADING,
            "other_class": self.other / LEADING,
            "nearest_is_own": self.nearest,
        }


def between_domains(parts: Mapping[int, ClassStatistics], domains: Mapping[int, str | None]) -> list[DomainSimilarity]:
    """The likeness of every two domains that have classes to compare, from the clients' statistics.

    parts: each client's. domains: each client's domain; those of a mixed one (None) do not count.
    """
    held: dict[str, list[ClassStatistics]] = {}
    for client, part in parts.items():
        if (name := domains[client]) is not None:
            held.setdefault(name, []).append(part)
    if len(held) < 2:
        return []
    shapes = {}
    for name in held:
        found = geometry(merge(held[name]), explained=1.0, max_rank=LEADING)
        shapes[name] = {
            int(label): shape for label, shape in zip(found.classes, found.shapes, strict=True) if shape.rank == LEADING
        }
    alike = []
    for first, second in combinations(shapes, 2):
        if labels := sorted(shapes[first].keys() & shapes[second].keys()):
            matrix = similarity_matrix([shapes[first][c] for c in labels], [shapes[second][c] for c in labels], LEADING)
            alike.append(DomainSimilarity((first, second), np.array(labels, dtype=np.int64), matrix))
    return alike
