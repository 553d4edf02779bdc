"""Fitting: methods that have their model after questions to all clients, in one round without local training."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from app import messages
from app.algorithms.fitted import Fitted
from app.engines.cohort import CohortGrid
from app.models.base import Weights
from app.strategies.federated import Federated
from app.strategies.phased import Phased


class Fitting(Phased):
    """Its one round is the fit. Every client is asked, whatever ``federation.participation`` says."""

    @property
    def rounds(self) -> int:
        return 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid) and isinstance(self.base, Federated) and self.hello is not None
        algorithm = self.base.algorithm
        assert isinstance(algorithm, Fitted)

        def ask(question: str, asked: Weights) -> list[Weights]:
            replies = self.ask(grid, messages.SUMS, messages.question_content(question, asked))
            return [messages.read_answer(reply) for reply in replies]

        self.base.weights = algorithm.fit(ask, len(self.hello.classes))
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert isinstance(self.base, Federated)
        return messages.weights_record(self.base.weights), None
