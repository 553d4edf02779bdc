"""Linear discriminant analysis from merged class statistics (FedCGS): see app/geometry/closed_form.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from ..geometry import closed_form
from ..geometry.class_statistics import ClassStatistics, merge
from .from_statistics import FromStatistics


@dataclass(frozen=True)
class LDA(FromStatistics):
    """shrinkage: how far the pooled covariance is drawn towards the sphere, 0 to 1."""

    from_sums: ClassVar[bool] = True

    shrinkage: Annotated[float, Field(ge=0, le=1)] = 0.1

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> closed_form.Head:
        return closed_form.lda(merge(parts), classes, self.shrinkage)
