"""Shift: a client translates its own samples into the other domains; nothing but class means need be shared."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..common.errors import FedgeoError
from ..common.received import bounded
from ..config.schema import Positive
from ..geometry.class_geometry import Geometry
from ..geometry.class_statistics import ClassStatistics, gather, merge
from ..geometry.domain_shift import Transfer, check_shift, transfer
from ..geometry.statistics_checks import check_statistics
from .base import Client, Population, Receiver, Sender, packed
from .filling import SERVER, FillingAugmentation, check_fits
from .sources import Filling, Move


@dataclass(frozen=True)
class ShiftAugmentation(FillingAugmentation):
    """x + delta_{d'} - delta_d, evenly over the other domains d'; see geometry/domain_shift.py.

    An absent class is anchored at m_c + delta_{d'} of every domain. In step 2 own samples go to the prototype's
    domain; where the client has none of the class, the prototype itself is the anchor.

    noise: also perturb along the shapes, as ``ggeur`` does with this ``scale``; clients then share covariances too.
    explained, max_rank, covariance: of those shapes, as ggeur's.
    """

    name: ClassVar[str] = "shift"

    noise: bool = False
    scale: Literal["sqrt", "lambda"] = "sqrt"
    explained: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_rank: Positive | None = None
    covariance: Literal["total", "within"] = "total"

    @property
    def filling(self) -> Filling:
        return Filling(self.target, self.absent, self.scale, self.step2, self.per_prototype, shaped=self.noise)

    @property
    def robust(self) -> tuple[str, ...]:  # a median leaves no differences between domains
        return ("clip",)

    def check_domains(self, domains: Collection[str | None]) -> None:
        """Refused where all clients hold one domain, or one of them several."""
        super().check_domains(domains)
        check_shift(list(domains))

    def client_statistics(self, x: np.ndarray, y: np.ndarray, client: Client) -> dict[str, np.ndarray]:
        return packed(gather(x, y, covariances=self.noise), client.privacy, self.precision)

    def read_statistics(self, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> ClassStatistics:
        return ClassStatistics.from_arrays(arrays, origin)

    def check_statistics(self, found: ClassStatistics, sender: Sender) -> None:
        check_statistics(found, sender.counts, sender.dimension, sender.exact, sender.name, sender.largest)
        if not self.noise and bool(found.ranks.any()):
            raise FedgeoError(f"{sender.name}: it was asked for means alone, and sends covariances")

    def merge(self, parts: Mapping[int, ClassStatistics], clients: Population) -> Transfer:
        """The centres m_c and deltas delta_d, fitted to the classes' means by domain."""
        return transfer(
            parts,
            clients.domains,
            shapes=merge(parts.values(), between=self.covariance == "total") if self.noise else None,
            explained=self.explained,
            max_rank=self.max_rank,
            prototypes=self.step2,
            rank_share=clients.rank_share,
        )

    def read_shared(self, arrays: Mapping[str, np.ndarray], receiver: Receiver) -> Transfer:
        found = Transfer.from_arrays(arrays)
        check_fits(found.geometry, [shape.rank for shape in found.geometry.shapes], receiver)
        bounded(found.deltas, "deltas", SERVER)
        return found

    def warning(self, shared: Transfer, perturbation_rms: float) -> str | None:
        return super().warning(shared.geometry, perturbation_rms)

    def located(self, shared: Transfer, client: int) -> tuple[Geometry, Move]:
        if not isinstance(shared, Transfer):
            raise FedgeoError(f"client {client}: augmentation.kind=shift needs the shifts of the domains")
        return shared.geometry, Move(shared, client)
