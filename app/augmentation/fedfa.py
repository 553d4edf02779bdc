"""FedFA as the GGEUR paper describes it: samples from a Gaussian round the class prototypes, without covariances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..common.errors import FedgeoError
from ..common.received import bounded, check_counts
from ..geometry import gaussians
from ..geometry.gaussians import Gaussians, estimate
from ..geometry.statistics_checks import check_norms
from .base import Client, Population, Receiver, Sender, packed
from .filling import FillingAugmentation, check_fits
from .sources import Filling


@dataclass(frozen=True)
class FedFAAugmentation(FillingAugmentation):
    """See geometry/gaussians.py. covariance: ``total``, or ``within``, without the spread between clients' means."""

    name: ClassVar[str] = "fedfa"

    covariance: Literal["total", "within"] = "total"

    @property
    def filling(self) -> Filling:
        return Filling(self.target, self.absent, step2=self.step2, per_prototype=self.per_prototype, around="mean")

    def client_statistics(self, x: np.ndarray, y: np.ndarray, client: Client) -> dict[str, np.ndarray]:
        return packed(estimate(x, y), client.privacy, self.precision)

    def read_statistics(self, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> Gaussians:
        return Gaussians.from_arrays(arrays, origin)

    def check_statistics(self, found: Gaussians, sender: Sender) -> None:
        if found.dimension != sender.dimension:
            raise FedgeoError(f"{sender.name}: its means have dimension {found.dimension}, it said {sender.dimension}")
        bounded(found.means, "means", sender.name)
        bounded(found.variances, "variances", sender.name)
        check_norms(found, sender.largest, sender.name)
        if len(found.prototype_classes):
            raise FedgeoError(f"{sender.name}: it sends prototypes, which only the server makes of all")
        check_counts(found.classes, found.counts, sender.counts, sender.name)

    def merge(self, parts: Mapping[int, Gaussians], clients: Population) -> Gaussians:
        """The merged Gaussians, with step 2 the clients' prototypes too."""
        return gaussians.merge(parts, between=self.covariance == "total", prototypes=self.step2)

    def read_shared(self, arrays: Mapping[str, np.ndarray], receiver: Receiver) -> Gaussians:
        found = Gaussians.from_arrays(arrays)
        check_fits(found, [0] * len(found.counts), receiver)
        return found
