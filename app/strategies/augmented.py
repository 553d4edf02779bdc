"""Augmentation as a strategy: before the rounds statistics go up, and what all of them come to goes down."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors.numpy import load_file, save

from .. import messages
from ..augmentation.base import Augmentation, Population, Shared
from ..common.files import write_atomic
from ..geometry.class_statistics import ByClass, ClassStatistics
from ..geometry.similarity import between_domains
from ..grids.cohort import CohortGrid
from ..messages.records import array_digest
from ..models.base import Weights
from .base import FedgeoStrategy
from .drawn import FIGURES, Drawn, of_all
from .handshake import Handshake

log = logging.getLogger(__name__)


class AugmentedStrategy(FedgeoStrategy):
    """Two phases before the rounds of any base strategy, which then trains on what the clients augment.

    augmentation: what clients share, and what becomes of it. federation: all that ``FedgeoStrategy`` takes.
    """

    def __init__(self, base: Strategy, augmentation: Augmentation, **federation: Any) -> None:
        super().__init__(base, **federation)
        self.augmentation = augmentation
        self.shared: Shared | None = None  # what all clients were sent; None in a run that was resumed
        self.digest = ""  # of what all clients were sent
        self._statistics: list[ClassStatistics] | None = None  # for a first head, which then asks for nothing more
        self._asked: dict[int, Message] = {}  # this round's training messages

    def state(self) -> tuple[Weights, dict[str, Any]]:
        server, facts = super().state()
        return server, facts | {"digest": self.digest, "drawn": asdict(self.drawn)}

    def restore(self, done: int, server: Weights, facts: Mapping[str, Any]) -> None:
        super().restore(done, server, facts)
        self.digest, before = str(facts["digest"]), facts["drawn"]
        clients = {int(client): counts for client, counts in before["clients"].items()}
        self.drawn = Drawn(before["added"], before["perturbation_rms"], clients)

    def combine(self, parts: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """What all clients are sent, from what each of them shared."""
        assert self.hello is not None
        classes = len(self.hello.classes)
        read = {k: self.augmentation.read_statistics(arrays, classes, f"client {k}") for k, arrays in parts.items()}
        clients = Population(domain_numbers(self.hello), self.hello.privacy.rank_share)
        by_class = all(isinstance(part, ByClass) for part in read.values())
        admitted = self.admitted(read) if by_class else read
        self.shared = self.augmentation.merge(admitted, clients)
        if self.augmentation.shares_covariances:
            if self.init is not None:
                self._statistics = list(admitted.values())
            domains = dict(zip(self.hello.clients, self.hello.domains, strict=True))
            self.similarities = tuple(between_domains(read, domains))
        return self.shared.to_arrays("float32")

    def class_statistics(self, grid: CohortGrid, covariances: bool) -> list[ClassStatistics]:
        if self._statistics is None:
            return super().class_statistics(grid, covariances)
        found, self._statistics = self._statistics, None
        return found

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """query.stats: hear what the clients share. train.geometry: send all of them what it comes to."""
        assert self.hello is not None
        if self.digest:  # a resumed run: the nodes have it, or are sent it when they say that they do not
            config["geometry"] = self.digest
            return
        self.augmentation.check(self.hello.privacy)
        self.augmentation.check_domains(self.hello.domains)
        if self.augmentation.by_class:
            self.check_enough(self.hello.clients)  # else what is asked for could not be used
        arrays = self.of_all(grid)
        arrays["domains"] = domain_numbers(self.hello)
        config["geometry"] = self.digest = array_digest(arrays)
        if self.folder is not None:
            packed = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
            write_atomic(self.folder / f"{self.digest}.safetensors", packed, durable=True)
        content = RecordDict({messages.ARRAYS: messages.to_record(arrays), messages.CONFIG: config})
        self.drawn = of_all(
            {
                reply.metadata.src_node_id: (
                    {name: messages.number(reply.content.metric_records[messages.METRICS], name) for name in FIGURES},
                    messages.read_text(reply.content),
                )
                for reply in self.ask(grid, messages.GEOMETRY, content)
            }
        )
        if (text := self.augmentation.warning(self.shared, self.drawn.perturbation_rms)) is not None:
            self.warnings = (text,)

    def of_all(self, grid: CohortGrid) -> dict[str, np.ndarray]:
        """What all clients are sent, from the answers to query.stats."""
        assert self.hello is not None
        if self.masks is not None:
            found = self.masked_statistics(grid, "augmentation")
            if self.init is not None:
                self._statistics = [found]
            self.shared = self.augmentation.merge(
                {self.hello.clients[0]: found}, Population(domain_numbers(self.hello), self.hello.privacy.rank_share)
            )
            return self.shared.to_arrays("float32")
        replies = self.ask(grid, messages.STATISTICS, messages.statistics_content("augmentation"))
        return self.combine(
            {
                reply.metadata.src_node_id: messages.from_record(reply.content.array_records[messages.ARRAYS])
                for reply in replies
            }
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        grid = self.cohort(grid)
        asked = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id: message for message in asked}
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return super().aggregate_train(server_round, self._supply(list(replies)))

    def _supply(self, replies: list[Message]) -> list[Message]:
        """The round's replies, once the clients that lacked what all were sent have it and were asked again."""
        lacking = {reply.metadata.src_node_id for reply in replies if messages.is_missing(reply)}
        path = None if self.folder is None else self.folder / f"{self.digest}.safetensors"
        if not lacking or path is None or not path.exists() or self._grid is None:
            return replies
        log.info("clients %s lack the shapes: they are sent again", ", ".join(map(str, sorted(lacking))))
        content = RecordDict({messages.ARRAYS: messages.to_record(load_file(path))})
        content[messages.CONFIG] = ConfigRecord({"geometry": self.digest})
        sent = [Message(content, client, messages.GEOMETRY) for client in sorted(lacking)]
        self._grid.send_and_receive(sent, timeout=self.limits.deadline)
        asked = [self._asked[client] for client in sorted(lacking)]
        again = self._grid.send_and_receive(asked, timeout=self.limits.deadline)
        kept = [reply for reply in replies if reply.metadata.src_node_id not in lacking]
        return sorted([*kept, *again], key=lambda reply: reply.metadata.src_node_id)

    def record(self) -> dict[str, Any]:
        hello = self.hello
        assert hello is not None
        held = dict(zip(hello.clients, zip(hello.domains, hello.counts.tolist(), strict=True), strict=True))
        clients = [
            {"client": client, "domain": held[client][0], "held": held[client][1], **counts}
            for client, counts in sorted(self.drawn.clients.items())
        ]
        return {
            "added": self.drawn.added,
            "perturbation_rms": self.drawn.perturbation_rms,
            "classes": hello.classes,
            "clients": clients,
            **({} if self.shared is None else self.augmentation.record(self.shared, hello.classes)),
        }


def domain_numbers(hello: Handshake) -> np.ndarray:
    """int64 (all clients,): one number for all clients of a domain, -1 where a client's domain is mixed or unknown."""
    names = {name: number for number, name in enumerate(sorted({d for d in hello.domains if d is not None}))}
    numbers = np.full(hello.total, -1, dtype=np.int64)
    for client, name in zip(hello.clients, hello.domains, strict=True):
        if name is not None:
            numbers[client] = names[name]
    return numbers
