"""Fitting: methods that have their model after questions to all clients, in one round without local training."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from .. import messages
from ..common.errors import FedgeoError
from ..grids.cohort import CohortGrid
from ..models.base import Weights
from ..one_shot.fitted import Fitted
from .algorithm import AlgorithmStrategy
from .base import FedgeoStrategy


class FittedStrategy(FedgeoStrategy):
    """Its one round is the fit. Every client is asked, whoever takes part in rounds."""

    one_round = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid) and isinstance(self.base, AlgorithmStrategy) and self.hello is not None
        algorithm = self.base.algorithm
        assert isinstance(algorithm, Fitted)

        def ask(question: str, asked: Weights) -> list[Weights]:
            assert self.hello is not None
            self.check_totals(self.hello.clients)  # else what is asked for could not be used
            replies = self.ask(grid, messages.SUMS, messages.question_content(question, asked))
            self.check_totals(reply.metadata.src_node_id for reply in replies)
            return [messages.read_answer(reply) for reply in replies]

        self.base.weights = algorithm.fit(ask, len(self.hello.classes))
        return []

    def check_totals(self, clients: Iterable[int]) -> None:
        """Refuse means of too few trials, which all clients are sent: of a class, or of all trials together."""
        assert (
            isinstance(self.base, AlgorithmStrategy)
            and isinstance(self.base.algorithm, Fitted)
            and self.hello is not None
        )
        clients, bound = list(clients), self.hello.privacy.min_total
        if self.base.algorithm.by_class and (few := self.hello.few(clients)):
            raise FedgeoError(
                f"class {self.hello.classes[few[0]]} has fewer than privacy.min_total={bound} trials in all, and its "
                "mean would be sent to all clients: leave the class out of data.events, or choose method=tangent_lr"
            )
        if self.hello.held(clients).sum() < bound:
            raise FedgeoError(
                f"there are fewer than privacy.min_total={bound} trials in all, and their mean would be sent to all "
                "clients"
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert isinstance(self.base, AlgorithmStrategy)
        return messages.weights_record(self.base.weights), None
