"""Linear discriminant analysis where clients share class means alone (FedCOF): see app/geometry/closed_form.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from ..geometry import closed_form
from ..geometry.class_statistics import ClassStatistics, merge
from .from_statistics import FromStatistics


@dataclass(frozen=True)
class MeansOnly(FromStatistics):
    """shrinkage: how far the covariance that the means tell is drawn towards the sphere, 0 to 1."""

    covariances: ClassVar[bool] = False
    robust: ClassVar[tuple[str, ...]] = ("clip",)  # a median leaves no spread of the clients' means

    shrinkage: Annotated[float, Field(ge=0, le=1)] = 0.1

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> closed_form.Head:
        return closed_form.means_only(parts, merge(parts, between=False), classes, self.shrinkage)
