"""GGEUR: statistics up, geometric shapes down, then the rounds of any base strategy."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from app import messages
from app.augmentation import check_domains
from app.config import Augmentation, Federation
from app.engines.cohort import CohortGrid
from app.geometry import Geometry, geometry
from app.likeness import Likeness, between_domains
from app.node import array_digest
from app.statistics import ClassStatistics, merge
from app.strategies.phased import Hello, Phased
from app.strategies.rate import Rate


@dataclass(frozen=True)
class Described:
    """What the clients said of their augmentation: added samples, their perturbation, and counts by class."""

    added: int
    perturbation_rms: float
    clients: dict[int, dict[str, Any]]


NOTHING_DRAWN = Described(0, 0.0, {})


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
        self.geometry: Geometry | None = None
        self.likeness: list[Likeness] = []
        self.described = NOTHING_DRAWN

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """query.stats: merge what the clients hold (Eq. 4). train.geometry: send the shapes (Eq. 2) to all."""
        assert self.hello is not None
        if self.augmentation.step2:
            check_domains(self.hello.domains)
        parts = self.collect(grid)
        self.geometry = self.merge(parts)
        self.likeness = between_domains(parts, dict(zip(self.hello.clients, self.hello.domains, strict=True)))
        del parts
        arrays = self.geometry.to_arrays("float32")
        arrays["domains"] = domain_numbers(self.hello, len(grid.clients))
        config["geometry"] = array_digest(arrays)
        content = RecordDict({messages.ARRAYS: messages.to_record(arrays), messages.CONFIG: config})
        replies = self.ask(grid, messages.GEOMETRY, content)
        metrics = [reply.content.metric_records[messages.METRICS] for reply in replies]
        perturbed = [messages.number(m, "perturbed") for m in metrics]
        rms = [messages.number(m, "perturbation_rms") for m in metrics]
        energy = sum(n * r**2 for n, r in zip(perturbed, rms, strict=True))
        self.described = Described(
            int(sum(messages.number(m, "added") for m in metrics)),
            math.sqrt(energy / sum(perturbed)) if sum(perturbed) else 0.0,
            {reply.metadata.src_node_id: messages.read_text(reply.content) for reply in replies},
        )

    def collect(self, grid: CohortGrid) -> dict[int, ClassStatistics]:
        """The class statistics of every client, checked."""
        parts = {}
        for reply in self.ask(grid, messages.STATISTICS, RecordDict()):
            client = reply.metadata.src_node_id
            arrays = messages.from_record(reply.content.array_records[messages.ARRAYS])
            parts[client] = ClassStatistics.from_arrays(arrays, origin=f"client {client}")
        return parts

    def merge(self, parts: dict[int, ClassStatistics]) -> Geometry:
        """The global shape of every class that a client holds, and with step 2 the clients' prototypes."""
        chosen = self.augmentation
        return geometry(
            merge(parts.values(), between=chosen.covariance == "total"),
            explained=chosen.explained,
            max_rank=chosen.max_rank,
            prototypes=parts if chosen.step2 else None,
        )

    def record(self, hello: Hello) -> dict[str, Any]:
        """What was drawn, for the run directory: the shapes, and each client's samples by class before and after."""
        assert self.geometry is not None
        held = dict(zip(hello.clients, zip(hello.domains, hello.counts.tolist(), strict=True), strict=True))
        shapes = [
            {
                "class": hello.classes[label],
                "samples": int(count),
                "rank": shape.rank,
                "variance": shape.total_variance,
                "explained": float(shape.eigenvalues.sum() / shape.total_variance) if shape.total_variance else 1.0,
            }
            for label, count, shape in zip(
                self.geometry.classes, self.geometry.counts, self.geometry.shapes, strict=True
            )
        ]
        clients = [
            {"client": client, "domain": held[client][0], "held": held[client][1], **counts}
            for client, counts in sorted(self.described.clients.items())
        ]
        return {
            "added": self.described.added,
            "perturbation_rms": self.described.perturbation_rms,
            "classes": hello.classes,
            "shapes": shapes,
            "clients": clients,
        }


def domain_numbers(hello: Hello, clients: int) -> np.ndarray:
    """int64 (clients,): one number for all clients of a domain, -1 where a client's domain is mixed or unknown."""
    names = {name: number for number, name in enumerate(sorted({d for d in hello.domains if d is not None}))}
    numbers = np.full(clients, -1, dtype=np.int64)
    for client, name in zip(hello.clients, hello.domains, strict=True):
        if name is not None:
            numbers[client] = names[name]
    return numbers
