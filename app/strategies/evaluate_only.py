"""Untrained: one evaluation of the weights that a method begins with, and no training."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from .base import FedgeoStrategy


class EvaluateOnly(FedgeoStrategy):
    """Its one round asks nothing of the clients but, where they evaluate, their scores."""

    one_round = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return None, None
