"""AlgorithmStrategy: a Flower strategy that runs any of our algorithms."""

from collections.abc import Iterable
from dataclasses import replace
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .. import messages
from ..algorithms.base import Algorithm
from ..messages.flower_private import log
from ..models.base import Weights
from .handshake import Handshake


class AlgorithmStrategy(Strategy):
    """Sends the global weights and the algorithm's auxiliary arrays to every node of the grid, and takes its step."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.handshake: Handshake | None = None
        self.nodes = 0  # of the round, which are all clients where there was no handshake
        self.weights: Weights = {}
        self.state: Weights = {}

    def begin(self, handshake: Handshake) -> None:
        """What all clients said of themselves, before the first round."""
        self.handshake = handshake

    @property
    def clients(self) -> int:
        """How many clients there are in all (K), whoever takes part."""
        return self.nodes if self.handshake is None else self.handshake.total

    def summary(self) -> None:
        log(INFO, "\t└──> %s", self.algorithm)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to every node of ``grid``, all with the same content."""
        self.weights, _ = messages.split_weights(arrays)
        if not self.state:
            self.state = self.algorithm.server_state(self.weights)
        config["server-round"] = server_round
        record = messages.weights_record(self.weights, self.algorithm.auxiliary(self.state))
        content = RecordDict({messages.ARRAYS: record, messages.CONFIG: config})
        nodes = list(grid.get_node_ids())
        self.nodes = len(nodes)
        return [Message(content, node, messages.TRAIN) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next global weights, and the clients' mean training loss; (None, None) where all have failed."""
        good = [reply for reply in replies if not reply.has_error()]
        updates = [messages.read_update(reply) for reply in good]
        if not updates:
            return None, None
        few = [] if self.handshake is None else self.handshake.few(update.client for update in updates)
        updates = [replace(update, auxiliary=self.algorithm.withhold(update.auxiliary, few)) for update in updates]
        self.weights, self.state = self.algorithm.aggregate(self.weights, self.state, updates, self.clients)
        return messages.weights_record(self.weights), mean_loss(good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


def mean_loss(replies: Iterable[Message]) -> MetricRecord | None:
    """The training loss of all replies, weighted by their examples; None where there are none."""
    losses = [pair for reply in replies for pair in messages.read_loss(reply.content)]
    total = sum(weight for weight, _ in losses)
    return MetricRecord({"train_loss": sum(w * loss for w, loss in losses) / total}) if total else None
