"""Federated: a Flower strategy that runs any of our algorithms."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .. import messages
from ..algorithms.base import Algorithm
from ..models.base import Weights


class AlgorithmStrategy(Strategy):
    """Sends the global weights and what the algorithm shares to every node it is shown, and takes its step.

    clients: how many there are in all (K), whoever takes part.
    """

    def __init__(self, algorithm: Algorithm, clients: int) -> None:
        self.algorithm = algorithm
        self.clients = clients
        self.few: Callable[[Iterable[int]], list[int]] = lambda _: []  # classes that these clients have too few of
        self.weights: Weights = {}
        self.state: Weights = {}

    def summary(self) -> None:
        log(INFO, "\t└──> %s over %d clients", self.algorithm, self.clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.weights, _ = messages.split_weights(arrays)
        if not self.state:
            self.state = self.algorithm.server_state(self.weights)
        config["server-round"] = server_round
        record = messages.weights_record(self.weights, self.algorithm.auxiliary(self.state))
        content = RecordDict({messages.ARRAYS: record, messages.CONFIG: config})
        return [Message(content, client, messages.TRAIN) for client in grid.get_node_ids()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        updates = [messages.read_update(reply) for reply in replies if not reply.has_error()]
        if not updates:
            return None, None
        few = self.few(update.client for update in updates)
        updates = [replace(update, auxiliary=self.algorithm.withhold(update.auxiliary, few)) for update in updates]
        self.weights, self.state = self.algorithm.aggregate(self.weights, self.state, updates, self.clients)
        return messages.weights_record(self.weights), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None
