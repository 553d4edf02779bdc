"""GGEUR: statistics up, geometric shapes down, then the rounds of any base strategy."""

import math

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from app import messages
from app.config import Augmentation, Federation
from app.engines.cohort import CohortGrid
from app.geometry import Geometry, geometry
from app.node import array_digest
from app.statistics import ClassStatistics, merge
from app.strategies.phased import Phased
from app.strategies.rate import Rate


class GGEUR(Phased):
    """The paper's method as a wrapper: the base strategy trains on what the clients augment."""

    def __init__(
        self,
        base: Strategy,
        federation: Federation,
        rate: Rate,
        seed: int,
        code: str,
        *,
        central: bool,
        augmentation: Augmentation,
    ) -> None:
        super().__init__(base, federation, rate, seed, code, central=central)
        self.augmentation = augmentation
        self.added = 0
        self.perturbation_rms = 0.0
        self.geometry: Geometry | None = None

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """query.stats: merge what the clients hold (Eq. 4). train.geometry: send the shapes (Eq. 2) to all."""
        self.geometry = self.merge(grid)
        arrays = self.geometry.to_arrays("float32")
        config["geometry"] = array_digest(arrays)
        content = RecordDict({messages.ARRAYS: messages.to_record(arrays), messages.CONFIG: config})
        replies = self.ask(grid, messages.GEOMETRY, content)
        metrics = [reply.content.metric_records[messages.METRICS] for reply in replies]
        self.added = int(sum(messages.number(m, "added") for m in metrics))
        perturbed = [messages.number(m, "perturbed") for m in metrics]
        rms = [messages.number(m, "perturbation_rms") for m in metrics]
        energy = sum(n * r**2 for n, r in zip(perturbed, rms, strict=True))
        self.perturbation_rms = math.sqrt(energy / sum(perturbed)) if sum(perturbed) else 0.0

    def merge(self, grid: CohortGrid) -> Geometry:
        """The global shape of every class that a client holds, and with step 2 the clients' prototypes."""
        parts = {}
        for reply in self.ask(grid, messages.STATISTICS, RecordDict()):
            client = reply.metadata.src_node_id
            arrays = messages.from_record(reply.content.array_records[messages.ARRAYS])
            parts[client] = ClassStatistics.from_arrays(arrays, origin=f"client {client}")
        chosen = self.augmentation
        return geometry(
            merge(parts.values(), between=chosen.covariance == "total"),
            explained=chosen.explained,
            max_rank=chosen.max_rank,
            prototypes=parts if chosen.step2 else None,
        )
