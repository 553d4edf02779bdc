"""Ridge regression on one-hot targets from merged class statistics (AFL, Fed3R): see app/closed_form.py."""

from collections.abc import Sequence
from dataclasses import dataclass

from app import closed_form
from app.algorithms.base import NonNegative
from app.algorithms.from_statistics import FromStatistics
from app.statistics import ClassStatistics, merge


@dataclass(frozen=True)
class Ridge(FromStatistics):
    """alpha: the penalty, added to the diagonal of the summed second moments."""

    alpha: NonNegative = 1.0

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> closed_form.Head:
        return closed_form.ridge(merge(parts), classes, self.alpha)
