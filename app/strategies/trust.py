"""How far the server trusts what clients send: caps on what each counts, and a word on who is far from the others."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Bulyan, Krum, MultiKrum, Strategy

from .. import messages
from ..common.errors import FedgeoError
from ..geometry.class_statistics import ClassStatistics
from ..geometry.gaussians import Gaussians
from ..geometry.robust import LEAST, Robust, capped, far_from_others, tempered
from .requests import named

log = logging.getLogger(__name__)

Statistics = TypeVar("Statistics", ClassStatistics, Gaussians)
FAR = 8.0  # times the median distance, from which an update is called far: honest ones of skewed labels lie up to 6.8


@dataclass(eq=False)
class Trust:
    """Of one run. max_weight: the most that a client counts, times the median client's; None: no cap.

    robust: how class statistics are merged. noticed: by client, the first word on its being far from the others.
    """

    max_weight: float | None = None
    robust: Robust = "none"
    noticed: dict[int, str] = field(default_factory=dict)

    def statistics(
        self, parts: Mapping[int, Statistics], held: Mapping[int, int], classes: Sequence[str], sites: Mapping[int, str]
    ) -> dict[int, Statistics]:
        """The clients' statistics as they are to be merged. held: each client's samples, by its handshake.

        A client that says it holds more than ``max_weight`` times the median has its counts of all classes scaled to
        that. Of ``robust`` other than none, ``parts`` are class statistics.
        """
        totals = np.array([held[client] for client in parts], dtype=np.float64)
        factors = capped(totals, self.max_weight) / np.maximum(totals, 1)
        weighed = {
            client: part if factor >= 1 or not held[client] else scaled(part, factor)
            for (client, part), factor in zip(parts.items(), factors, strict=True)
        }
        if any(len(part) for part in weighed.values()):
            for client, (label, words) in far_from_others(weighed).items():
                self.notice(client, f"{named(client, sites)}: its {words}, in class {classes[label]}")
        if self.robust == "none":
            return weighed
        return cast(dict[int, Statistics], tempered(cast(dict[int, ClassStatistics], weighed), self.robust))

    def updates(
        self, number: int, replies: list[Message], sent: ArrayRecord, sites: Mapping[int, str]
    ) -> list[Message]:
        """The good replies of round ``number`` as they are to be aggregated. sent: what they have trained from."""
        self._look(number, replies, sent, sites)
        if self.max_weight is None:
            return replies
        weights = np.array([messages.read_examples(reply) for reply in replies])
        for reply, weight, most in zip(replies, weights, capped(weights, self.max_weight), strict=True):
            if most < weight:
                messages.write_examples(reply, float(most))
        return replies

    def _look(self, number: int, replies: Sequence[Message], sent: ArrayRecord, sites: Mapping[int, str]) -> None:
        """Notice updates that are far from the median of all by coordinate, of an even number the upper one."""
        if len(replies) < LEAST or not sent:
            return
        changes = np.stack([messages.flat_arrays(reply, sent) for reply in replies])
        middle = len(changes) // 2
        median = np.partition(np.ascontiguousarray(changes.T), middle, axis=1)[:, middle]  # several times as fast
        away = np.linalg.norm(changes - median, axis=1)
        usual = float(np.median(away))
        for reply, distance in zip(replies, away, strict=True):
            if usual and distance > FAR * usual:
                client = reply.metadata.src_node_id
                far = f"its weights lie {distance / usual:.3g} times as far from the others' as is usual"
                self.notice(client, f"round {number}: {named(client, sites)}: {far}")

    def notice(self, client: int, words: str) -> None:
        """Keep the first word on a client."""
        if client not in self.noticed:
            self.noticed[client] = words
            log.warning("warning: %s", words)


def scaled(part: Statistics, factor: float) -> Statistics:
    """Statistics with their counts times ``factor``, rounded down, at least 1."""
    return replace(part, counts=np.maximum((part.counts * factor).astype(np.int64), 1))


def check_tolerance(base: Strategy, clients: int) -> None:
    """Refuse a Krum, MultiKrum or Bulyan that does not hold for so many clients a round. Raises FedgeoError.

    Flower's own Bulyan does nothing in such a round, and its Krum compares each client with fewer others than it must.
    """
    if not isinstance(base, Bulyan | MultiKrum):
        return
    hostile, name = base.num_malicious_nodes, type(base).__name__
    factor = 4 if isinstance(base, Bulyan) else 2
    if hostile < 0:
        raise FedgeoError(f"method.num_malicious_nodes={hostile}: must be at least 0")
    if clients < factor * hostile + 3:
        most = (clients - 3) // factor
        lower = f"set it to at most {most}" if most >= 0 else "it needs three at the least"
        raise FedgeoError(
            f"{name} needs {factor} f + 3 = {factor * hostile + 3} clients a round where method.num_malicious_nodes="
            f"{hostile}, there are {clients}: {lower}, or choose method=geometric_median"
        )
    if isinstance(base, MultiKrum) and not isinstance(base, Krum):
        most = clients - hostile - 2
        if not 1 <= base.num_nodes_to_select <= most:
            raise FedgeoError(
                f"method.num_nodes_to_select={base.num_nodes_to_select}: of {clients} clients a round, "
                f"{hostile} of them hostile, {name} can choose 1 to n - f - 2 = {most}"
            )
