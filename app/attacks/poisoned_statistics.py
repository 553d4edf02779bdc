"""Class statistics that are the wrong class's: means and covariances of the classes that a client holds change places.

Each class gets those of the next one that the client holds, of no more directions than its own samples can have. They
are statistics that embeddings can have, so that no check of a single client finds them.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from ..geometry.class_statistics import TRIANGLE, ClassStatistics
from ..geometry.robust import joined
from .base import Attack, Changed, Times


@dataclass(frozen=True)
class PoisonedStatistics(Attack):
    """spread: times the root of every covariance, 1 to leave them. counts: times as many samples as it has."""

    name: ClassVar[str] = "poisoned_statistics"
    changes: ClassVar[Changed] = "statistics"

    spread: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    counts: Times = 1000

    @property
    def claimed(self) -> int:
        return self.counts

    def statistics(self, found: ClassStatistics) -> ClassStatistics:
        others = np.roll(np.arange(len(found)), -1)
        rows = [
            of_rank(found.only(np.arange(len(found)) == row), int(count) - 1)
            for row, count in zip(others, found.counts, strict=True)
        ]
        moved = replace(joined(rows, found), classes=found.classes, counts=found.counts)
        return replace(moved, triangles=self.spread**2 * moved.triangles, factors=self.spread * moved.factors)


def of_rank(found: ClassStatistics, most: int) -> ClassStatistics:
    """Statistics of one class with the leading ``most`` directions of its covariance, where that is a factor."""
    if found.ranks[0] == TRIANGLE or found.ranks[0] <= most:
        return found
    return replace(found, ranks=np.array([most]), factors=found.factors[:most])
