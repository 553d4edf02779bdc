"""GGEUR: new samples along the global geometric shape of each class (Algorithms 1 and 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..config.schema import Positive
from ..geometry.class_geometry import Geometry, geometry
from ..geometry.class_statistics import ClassStatistics, gather, merge
from ..geometry.statistics_checks import check_statistics
from .base import Client, Population, Receiver, Sender, packed
from .filling import FillingAugmentation, check_fits
from .sources import Filling


@dataclass(frozen=True)
class ShapeAugmentation(FillingAugmentation):
    """Clients share class statistics with covariances, and are sent the shape of every class (Eq. 4, Eq. 2).

    explained: the share of the variance that a shape keeps. max_rank: at most so many eigenvectors a class.
    covariance: ``total`` (Eq. 4), or ``within``, without the spread between the clients' means.
    """

    shares_covariances: ClassVar[bool] = True

    explained: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_rank: Positive | None = None
    covariance: Literal["total", "within"] = "total"

    @property
    def robust(self) -> tuple[str, ...]:  # a median leaves no prototypes of single clients
        return ("clip",) if self.step2 else ("clip", "median")

    @property
    def from_sums(self) -> bool:  # prototypes are single clients', and so is the spread between their means
        return not self.step2 and self.covariance == "total"

    def client_statistics(self, x: np.ndarray, y: np.ndarray, client: Client) -> dict[str, np.ndarray]:
        return packed(gather(x, y), client.privacy, self.precision)

    def read_statistics(self, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> ClassStatistics:
        return ClassStatistics.from_arrays(arrays, origin)

    def check_statistics(self, found: ClassStatistics, sender: Sender) -> None:
        check_statistics(found, sender.counts, sender.dimension, sender.exact, sender.name, sender.largest)

    def merge(self, parts: Mapping[int, ClassStatistics], clients: Population) -> Geometry:
        """The global shape of every class that a client holds, with step 2 the clients' prototypes."""
        return geometry(
            merge(parts.values(), between=self.covariance == "total"),
            explained=self.explained,
            max_rank=self.max_rank,
            prototypes=parts if self.step2 else None,
            rank_share=clients.rank_share,
        )

    def read_shared(self, arrays: Mapping[str, np.ndarray], receiver: Receiver) -> Geometry:
        shapes = Geometry.from_arrays(arrays)
        check_fits(shapes, [shape.rank for shape in shapes.shapes], receiver)
        return shapes

    def record(self, shared: Geometry, classes: Sequence[str]) -> dict[str, Any]:
        """The shapes along which samples were drawn."""
        found = zip(shared.classes, shared.counts, shared.shapes, strict=True)
        shapes = [
            {
                "class": classes[label],
                "samples": int(count),
                "rank": shape.rank,
                "variance": shape.total_variance,
                "explained": float(shape.eigenvalues.sum() / shape.total_variance) if shape.total_variance else 1.0,
            }
            for label, count, shape in found
        ]
        return {"shapes": shapes}


@dataclass(frozen=True)
class GGEURAugmentation(ShapeAugmentation):
    """Samples are anchors plus beta = sum_m eps_m s_m xi^m, along the eigenvectors xi^m of their class.

    scale: ``sqrt``, s_m the root of the eigenvalue, so that samples have the class's covariance; ``lambda``, the
    eigenvalue itself, as Algorithm 1 prints it, so that their covariance is the SQUARE of the class's: next to no
    perturbation where embeddings have unit norm.
    """

    name: ClassVar[str] = "ggeur"

    scale: Literal["sqrt", "lambda"] = "sqrt"

    @property
    def filling(self) -> Filling:
        return Filling(self.target, self.absent, self.scale, self.step2, self.per_prototype)
