"""Phased: a strategy round any base strategy, Flower's own too, that adds what every run of fedgeo needs.

Before the rounds: wait for the nodes, hear who they are (hello) and refuse a mixture. In every round: draw the
participants, and stop when more clients fail than may. GGEUR builds on it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from app import messages
from app.config import Federation
from app.engines.cohort import CohortGrid
from app.errors import FedgeoError
from app.strategies.rate import Rate

AGREED = {  # what to do where clients do not say the same
    "code": "install the same version of the app on every node",
    "classes": "give every site the same class names",
    "dimension": "use one encoder everywhere",
    "encoder": "use one encoder, with the same weights and preprocessing, everywhere",
    "normalisation": "set encoder.normalise alike everywhere",
}


@dataclass(frozen=True)
class Hello:
    """What the clients said of themselves: their numbers, domains and counts by class, (K, C)."""

    classes: tuple[str, ...]
    clients: tuple[int, ...]
    domains: tuple[str | None, ...]
    counts: np.ndarray


def compare(client: int, words: dict[str, Any], first: int, reference: dict[str, Any]) -> None:
    """Refuse a client that differs from the first one in what all must have alike, by the fact's name."""
    flat = [{"code": said["code"], "classes": said["classes"], **said["facts"]} for said in (words, reference)]
    for fact in flat[1]:
        if flat[0].get(fact) != flat[1][fact]:
            mend = AGREED.get(fact, "encode, record and process the data in one way everywhere")
            raise FedgeoError(
                f"client {client} has {fact} {flat[0].get(fact)}, client {first} has {flat[1][fact]}: {mend}"
            )


class Phased(Strategy):
    """Wraps ``base`` with the hello phase, reproducible participation and a bound on failures."""

    def __init__(
        self, base: Strategy, federation: Federation, rate: Rate, seed: int, code: str, *, central: bool
    ) -> None:
        self.base = base
        self.rate = rate
        self.federation = federation
        self.seed = seed
        self.code = code
        self.central = central  # whether the server evaluates; else every client does, after each round
        self.hello: Hello | None = None
        self.evaluated: dict[int, messages.Evaluation] = {}

    def summary(self) -> None:
        log(INFO, "\t├──> %s round %s", type(self).__name__, type(self.base).__name__)
        self.base.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop, after the phases. ``grid`` must be a CohortGrid that has discovered its clients."""
        assert isinstance(grid, CohortGrid)
        self.hello = self.greet(grid)
        config = train_config or ConfigRecord()
        self.prepare(grid, config)
        return super().start(grid, initial_arrays, num_rounds, timeout, config, evaluate_config, evaluate_fn)

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """Further phases before the first round; ``config`` goes with every training message."""

    def greet(self, grid: CohortGrid) -> Hello:
        """Hear every client, and refuse a mixture by name."""
        said = {
            reply.metadata.src_node_id: messages.read_text(reply.content)
            for reply in self.ask(grid, messages.HELLO, RecordDict())
        }
        first, reference = next(iter(said.items()))
        if reference["code"] != self.code:
            raise FedgeoError(f"client {first} runs another version of the code: {AGREED['code']}")
        for client, words in said.items():
            compare(client, words, first, reference)
        return Hello(
            tuple(reference["classes"]),
            tuple(said),
            tuple(words["domain"] for words in said.values()),
            np.array([words["counts"] for words in said.values()], dtype=np.int64),
        )

    def ask(self, grid: CohortGrid, kind: str, content: RecordDict) -> list[Message]:
        """One phase: ask every client, and return the replies; failures count as in a round."""
        grid.select()
        asked = [Message(content, client, kind) for client in grid.get_node_ids()]
        return self.check(kind, grid.send_and_receive(asked, timeout=self.federation.deadline))

    def check(self, what: str, replies: Iterable[Message]) -> list[Message]:
        """The good replies. Raises FedgeoError with a client's own error where too many failed."""
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        allowed = self.federation.max_failures * len(replies)
        if len(failed) > allowed or len(failed) == len(replies):
            first = min(failed, key=lambda reply: reply.metadata.src_node_id)
            raise FedgeoError(
                f"{what}: {len(failed)} of {len(replies)} clients failed, "
                f"federation.max_failures={self.federation.max_failures} allows {int(allowed)}; "
                f"client {first.metadata.src_node_id}: {first.error.reason}"
            )
        return [reply for reply in replies if not reply.has_error()]

    def participants(self, server_round: int, clients: list[int]) -> list[int]:
        """This round's clients, a function of the seed and the round alone."""
        wanted = self.federation.participation
        if wanted == "all":
            return clients
        number = max(1, int(wanted * len(clients))) if isinstance(wanted, float) else min(int(wanted), len(clients))
        rng = np.random.default_rng([self.seed, server_round])
        return sorted(int(c) for c in rng.choice(clients, size=number, replace=False))

    # --- a round is the base's, among this round's participants ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid)
        grid.select(self.participants(server_round, grid.clients))
        config["lr"] = self.rate.lr
        return self.base.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.base.aggregate_train(server_round, self.check(f"round {server_round}", replies))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid)
        if self.central:
            return []
        grid.select()
        config["server-round"] = server_round
        content = RecordDict({messages.ARRAYS: arrays, messages.CONFIG: config})
        return [Message(content, client, messages.EVALUATE) for client in grid.get_node_ids()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if not self.central:
            good = self.check(f"evaluation of round {server_round}", replies)
            self.evaluated = {reply.metadata.src_node_id: messages.read_evaluation(reply.content) for reply in good}
        return None
