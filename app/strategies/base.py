"""Phased: a strategy round any base strategy, Flower's own too, that adds what every run of fedgeo needs.

Before the rounds: wait for the nodes, hear who they are (hello) and refuse a mixture. In every round: draw the
participants, and stop when more clients fail than may. GGEUR builds on it.
"""

from collections.abc import Callable, Iterable
from logging import INFO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .. import messages
from ..common.errors import FedgeoError
from ..config.schema import Federation
from ..geometry.class_statistics import ClassStatistics
from ..geometry.gaussians import Gaussians
from ..grids.cohort import CohortGrid
from ..models.base import Weights
from ..one_shot.from_statistics import FromStatistics
from ..runs.checkpoint import Checkpoint
from .algorithm import AlgorithmStrategy
from .handshake import Handshake, shake_hands
from .requests import ask, good
from .schedule import LearningRate

Statistics = TypeVar("Statistics", ClassStatistics, Gaussians)


class FedgeoStrategy(Strategy):
    """Wraps ``base`` with the hello phase, reproducible participation and a bound on failures."""

    def __init__(
        self, base: Strategy, federation: Federation, rate: LearningRate, seed: int, code: str, *, central: bool
    ) -> None:
        self.base = base
        self.rate = rate
        self.federation = federation
        self.seed = seed
        self.code = code
        self.central = central  # whether the server evaluates; else every client does, after each round
        self.hello: Handshake | None = None  # where the server has heard the clients already
        self.sites: dict[int, str] = {}  # the names of a deployment's
        self.planner: Callable[[Handshake], dict[int, int]] | None = None  # each client's steps a round; None: its own
        self.evaluated: dict[int, messages.Evaluation] = {}
        self.done, self.resumed = 0, False  # rounds that an earlier process did, if this one goes on with its run
        self.folder: Path | None = None  # where the server keeps what it may have to send again
        self._fresh = dict(vars(base))
        self._sent = ArrayRecord()  # the weights of this round's training messages
        self.left_out: tuple[str, ...] = ()  # classes of which all clients together have too few
        self.init: FromStatistics | None = None  # what makes the first weights of class statistics; None: the model's

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """What a resumed run needs of this strategy: tensors, and plain values."""
        facts: dict[str, Any] = {"rate": self.rate.state(), "left_out": self.left_out}
        if isinstance(self.base, AlgorithmStrategy):
            return self.base.state, facts
        # a strategy of Flower's: what it has set since it was made would have to be kept, and in a way it knows
        facts["unsaved"] = sorted(k for k, value in vars(self.base).items() if value is not self._fresh.get(k, self))
        return {}, facts

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over where an earlier process stood. Raises FedgeoError where that was not kept whole."""
        if unsaved := checkpoint.facts.get("unsaved"):
            raise FedgeoError(
                f"{type(self.base).__name__} keeps {', '.join(unsaved)} from round to round, which no checkpoint "
                "holds: a run of it cannot be resumed"
            )
        self.done, self.resumed = checkpoint.round, True
        self.rate.restore(checkpoint.facts["rate"])
        self.left_out = tuple(checkpoint.facts.get("left_out", ()))
        if isinstance(self.base, AlgorithmStrategy):
            self.base.state = checkpoint.group("server")

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
        """Flower's own loop, after the phases. ``grid`` must be a CohortGrid that has discovered its clients.

        ``num_rounds`` counts those of an earlier process, which are not done again: Flower counts from 1, and all else
        here by the run's own rounds.
        """
        assert isinstance(grid, CohortGrid)
        self.sites = grid.names
        self.hello = self.hello or shake_hands(grid, self.federation, self.code)
        if isinstance(self.base, AlgorithmStrategy):
            self.base.few = self.hello.few
        config = train_config or ConfigRecord()
        if self.planner is not None:
            messages.write_steps(config, self.planner(self.hello))
        self.prepare(grid, config)
        if self.init is not None and not self.resumed:
            initial_arrays = messages.weights_record(self.head(grid, self.init))

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            return evaluate_fn(number and self.done + number, arrays)

        return super().start(
            grid,
            initial_arrays,
            num_rounds - self.done,
            timeout,
            config,
            evaluate_config,
            None if evaluate_fn is None else evaluate,
        )

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return self.federation.rounds

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """Further phases before the first round; ``config`` goes with every training message."""

    def head(self, grid: CohortGrid, method: FromStatistics) -> Weights:
        """The head that ``method`` makes of the clients' class statistics."""
        assert self.hello is not None
        return method.head(self.class_statistics(grid, method.covariances), len(self.hello.classes), self.seed)

    def class_statistics(self, grid: CohortGrid, covariances: bool) -> list[ClassStatistics]:
        """query.stats: every client's class statistics, in client order."""
        content = messages.statistics_content("covariances" if covariances else "means")
        parts = {
            reply.metadata.src_node_id: ClassStatistics.from_arrays(
                messages.from_record(reply.content.array_records[messages.ARRAYS]),
                origin=f"client {reply.metadata.src_node_id}",
            )
            for reply in self.ask(grid, messages.STATISTICS, content)
        }
        return list(self.admitted(parts).values())

    def admitted(self, parts: dict[int, Statistics]) -> dict[int, Statistics]:
        """The clients' statistics without the classes that all clients must not be told of: too few samples in all."""
        few = self.few(parts)
        return {client: part.only(~np.isin(part.classes, few)) for client, part in parts.items()}

    def few(self, clients: Iterable[int]) -> list[int]:
        """The classes of which these clients have too few samples. FedgeoError where there is no other class."""
        assert self.hello is not None
        clients, privacy = list(clients), self.hello.privacy
        found = self.hello.few(clients)
        self.left_out = tuple(self.hello.classes[label] for label in found)
        if self.left_out:
            names = ", ".join(self.left_out)
            log(INFO, "fewer than privacy.min_total=%d samples in all: %s", privacy.min_total, names)
        if not (self.hello.held(clients) >= privacy.min_total).any():
            raise FedgeoError(
                f"no class has privacy.min_total={privacy.min_total} samples of clients that hold privacy.min_count="
                f"{privacy.min_count} each: there is nothing to share; choose method=fedavg augmentation=none"
            )
        return found

    def ask(self, grid: CohortGrid, kind: str, content: RecordDict, deadline: float | None = None) -> list[Message]:
        """One phase: ask every client, and return the replies; failures count as in a round."""
        return ask(grid, self.federation, kind, content, deadline)

    def check(self, what: str, replies: Iterable[Message]) -> list[Message]:
        """The good replies. Raises FedgeoError with a client's own error where too many failed."""
        return good(what, replies, self.federation, self.sites)

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
        server_round += self.done
        grid.select(self.participants(server_round, grid.clients))
        config["lr"] = self.rate.lr
        self._sent = arrays
        return self.base.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        server_round += self.done
        arrays, metrics = self.base.aggregate_train(server_round, self.check(f"round {server_round}", replies))
        # some of Flower's strategies make float64 of what they were given
        return (None if arrays is None else messages.as_sent(arrays, self._sent)), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, CohortGrid)
        if self.central:
            return []
        grid.select()
        config["server-round"] = self.done + server_round
        content = RecordDict({messages.ARRAYS: arrays, messages.CONFIG: config})
        return [Message(content, client, messages.EVALUATE) for client in grid.get_node_ids()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if not self.central:
            counted = self.check(f"evaluation of round {self.done + server_round}", replies)
            self.evaluated = {reply.metadata.src_node_id: messages.read_evaluation(reply.content) for reply in counted}
        return None
