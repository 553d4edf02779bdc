"""The augmentation peers: FedMix, whose clients share means of batches, and FedFA, whose clients share Gaussians."""

import numpy as np

from ..augmentation.augmented_set import check_domains
from ..augmentation.fedmix import SharedMeans, pooled
from ..geometry import gaussians
from .augmented import AugmentedStrategy


class FedMix(AugmentedStrategy):
    """Every client is sent all clients' means."""

    def combine(self, parts: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        assert self.hello is not None
        classes = len(self.hello.classes)
        return pooled(
            SharedMeans.from_arrays(arrays, classes, origin=f"client {k}") for k, arrays in parts.items()
        ).to_arrays()


class FedFA(AugmentedStrategy):
    """Every client is sent the merged Gaussians, with step 2 the clients' prototypes too."""

    def combine(self, parts: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        assert self.hello is not None
        chosen = self.augmentation
        if chosen.step2:
            check_domains(self.hello.domains)
        gathered = {k: gaussians.Gaussians.from_arrays(arrays, origin=f"client {k}") for k, arrays in parts.items()}
        merged = gaussians.merge(self.admitted(gathered), between=chosen.covariance == "total", prototypes=chosen.step2)
        return merged.to_arrays("float32")
