"""GGEUR: statistics up, geometric shapes down, then the rounds of any base strategy."""

from typing import Any

import numpy as np

from ..augmentation.augmented_set import check_domains
from ..geometry.class_geometry import Geometry, geometry
from ..geometry.class_statistics import ClassStatistics, merge
from ..geometry.similarity import DomainSimilarity, between_domains
from ..grids.cohort import CohortGrid
from .augmented import AugmentedStrategy
from .handshake import Handshake


class GGEUR(AugmentedStrategy):
    """The paper's method as a wrapper. ``repeat``, its control, has the same phases."""

    geometry: Geometry | None = None
    similarities: tuple[DomainSimilarity, ...] = ()
    gathered: list[ClassStatistics] | None = None  # kept for a first head, which then asks for nothing more

    def combine(self, parts: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The global shape of every class that a client holds (Eq. 4, Eq. 2), with step 2 the clients' prototypes."""
        assert self.hello is not None
        chosen = self.augmentation
        if chosen.step2:
            check_domains(self.hello.domains)
        gathered = {k: ClassStatistics.from_arrays(arrays, origin=f"client {k}") for k, arrays in parts.items()}
        shared = self.admitted(gathered)
        self.geometry = geometry(
            merge(shared.values(), between=chosen.covariance == "total"),
            explained=chosen.explained,
            max_rank=chosen.max_rank,
            prototypes=shared if chosen.step2 else None,
            rank_share=self.hello.privacy.rank_share,
        )
        if self.init is not None:
            self.gathered = list(shared.values())
        domains = dict(zip(self.hello.clients, self.hello.domains, strict=True))
        self.similarities = tuple(between_domains(gathered, domains))
        return self.geometry.to_arrays("float32")

    def class_statistics(self, grid: CohortGrid, covariances: bool) -> list[ClassStatistics]:
        if self.gathered is None:
            return super().class_statistics(grid, covariances)
        kept, self.gathered = self.gathered, None
        return kept

    def record(self, hello: Handshake) -> dict[str, Any]:
        """What was drawn, and along which shapes."""
        assert self.geometry is not None
        found = zip(self.geometry.classes, self.geometry.counts, self.geometry.shapes, strict=True)
        shapes = [
            {
                "class": hello.classes[label],
                "samples": int(count),
                "rank": shape.rank,
                "variance": shape.total_variance,
                "explained": float(shape.eigenvalues.sum() / shape.total_variance) if shape.total_variance else 1.0,
            }
            for label, count, shape in found
        ]
        return super().record(hello) | {"shapes": shapes}
