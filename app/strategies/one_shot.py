"""OneRound: a head from the clients' class statistics, evaluated like any run. No training."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from .. import messages
from ..grids.cohort import CohortGrid
from ..models.base import Weights
from ..one_shot.from_statistics import FromStatistics
from .algorithm import AlgorithmStrategy
from .evaluate_only import EvaluateOnly


class OneShotStrategy(EvaluateOnly):
    """Its one round is the statistics. Every client is asked, whoever takes part in rounds."""

    found: Weights

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid) and isinstance(self.base, AlgorithmStrategy)
        assert isinstance(self.base.algorithm, FromStatistics)
        self.found = self.head(grid, self.base.algorithm)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return messages.weights_record(self.found), None
