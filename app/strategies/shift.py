"""Shift: class means up, the domains' shifts down; each client translates its own samples into the other domains."""

import numpy as np

from ..augmentation.augmented_set import check_domains
from ..geometry.class_statistics import ClassStatistics, merge
from ..geometry.domain_shift import transfer
from .augmented import AugmentedStrategy, domain_numbers


class Shift(AugmentedStrategy):
    """Counts and means are all that is asked of the clients, and covariances too where noise is wanted."""

    def combine(self, parts: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The centres m_c and deltas delta_d, fitted to the classes' means by domain."""
        assert self.hello is not None
        chosen = self.augmentation
        if chosen.step2:
            check_domains(self.hello.domains)
        gathered = self.admitted(
            {k: ClassStatistics.from_arrays(arrays, origin=f"client {k}") for k, arrays in parts.items()}
        )
        shapes = merge(gathered.values(), between=chosen.covariance == "total") if chosen.noise else None
        return transfer(
            gathered,
            domain_numbers(self.hello),
            shapes=shapes,
            explained=chosen.explained,
            max_rank=chosen.max_rank,
            prototypes=chosen.step2,
            rank_share=self.hello.privacy.rank_share,
        ).to_arrays("float32")
