"""Ridge regression on one-hot targets from merged class statistics (AFL, Fed3R): see app/geometry/closed_form.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..algorithms.base import NonNegative
from ..geometry import closed_form
from ..geometry.class_statistics import ClassStatistics, merge
from .from_statistics import FromStatistics


@dataclass(frozen=True)
class Ridge(FromStatistics):
    """alpha: the penalty, added to the diagonal of the summed second moments."""

    from_sums: ClassVar[bool] = True

    alpha: NonNegative = 1.0

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> closed_form.Head:
        return closed_form.ridge(merge(parts), classes, self.alpha)
