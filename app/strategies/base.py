"""FedgeoStrategy: a wrapper of any base strategy, Flower's own too, that adds what every run of fedgeo needs.

Before the rounds: find the clients, hear who they are (handshake) and refuse a mixture. In every round: draw the
participants, and stop when more clients fail than may. GGEUR builds on it.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .. import messages
from ..common.code import code_hash
from ..common.errors import FedgeoError
from ..geometry.class_statistics import ClassStatistics
from ..geometry.gaussians import Gaussians
from ..geometry.robust import Robust
from ..geometry.similarity import DomainSimilarity
from ..grids.cohort import CohortGrid, named
from ..grids.limits import Limits
from ..messages.flower_private import log
from ..models.base import Weights
from ..one_shot.from_statistics import FromStatistics
from ..one_shot.lda import LDA
from ..one_shot.ridge import Ridge
from .algorithm import AlgorithmStrategy
from .drawn import NOTHING
from .handshake import Handshake, shake_hands
from .masked import MaskedSums
from .requests import ask, good
from .schedule import LearningRate
from .trust import Trust, check_tolerance

Statistics = TypeVar("Statistics", ClassStatistics, Gaussians)
INIT: dict[str, type[FromStatistics]] = {"lda": LDA, "ridge": Ridge}


class FedgeoStrategy(Strategy):
    """Wraps ``base`` with the handshake, reproducible participation and a bound on failures."""

    one_round: ClassVar[bool] = False  # whether there is one round, whatever number is asked for

    def __init__(
        self,
        base: Strategy,
        *,
        seed: int = 0,
        participation: Literal["all"] | float = "all",
        max_failures: float = 0.0,
        min_nodes: int = 2,
        deadline: float = 1800.0,
        hello_deadline: float = 14_400.0,
        max_weight: float | None = None,
        robust: Robust = "none",
        masked: bool = False,
        classes: Sequence[str] | None = None,
        code: str | None = None,
        learning_rate: LearningRate | float | None = None,
        evaluate: Literal["clients", "server"] = "clients",
        init: Literal["lda", "ridge"] | None = None,
        planner: Callable[[Handshake], dict[int, int]] | None = None,
        handshake: Handshake | None = None,
        folder: Path | None = None,
    ) -> None:
        """``base`` configures and aggregates each round, among that round's participants.

        seed: of the participants that are drawn. participation: "all", a share of the clients below 1, or a number of
        clients a round. max_failures: the share of clients that may fail in a phase or round before FedgeoError stops
        the run. min_nodes: the fewest sites of a deployment. deadline: seconds for a phase before the rounds.
        hello_deadline: seconds for the first answers, before which clients encode their images. max_weight: the most
        that a client counts, times the median client's, None for no cap. robust: how class statistics are merged, see
        geometry/robust.py. masked: whether of statistics and weights only the sum over all clients is learned. classes:
        the order of a deployment's class names, None for all that the sites have. code: the hash that all nodes must
        tell, None for that of the code that runs here. learning_rate: what clients train with, None for the rate of
        their own configuration. evaluate: whether the clients score every round's model, or ``evaluate_fn`` alone.
        init: the one-round head that takes the place of the initial arrays. planner: each client's gradient steps a
        round, None for its epochs. handshake: what the clients said, where they have been asked already. folder: where
        what all clients were sent before the rounds is stored, for clients that lose it.
        """
        self.base = base
        self.seed = seed
        self.participation = participation
        self.limits = Limits(max_failures, min_nodes, deadline, hello_deadline)
        self.trust = Trust(max_weight, robust)
        self.masked = masked
        self.masks: MaskedSums | None = None
        self._grid: CohortGrid | None = None
        self.classes = classes
        self.code = code or code_hash()
        self.rate = LearningRate(learning_rate) if isinstance(learning_rate, int | float) else learning_rate
        self.central = evaluate == "server"
        self.init = None if init is None else INIT[init]()
        self.planner = planner
        self.folder = folder
        self.hello = handshake
        self.sites: dict[int, str] = {}  # the names of a deployment's
        self.evaluated: dict[int, messages.Evaluation] = {}
        self.done, self.resumed = 0, False  # rounds that an earlier process did, if this one goes on with its run
        self.left_out: tuple[str, ...] = ()  # classes of which all clients together have too few
        self.drawn = NOTHING  # what the clients have augmented their samples with
        self.warnings: tuple[str, ...] = ()  # what of that a person should know
        self.similarities: tuple[DomainSimilarity, ...] = ()  # of the domains whose statistics were shared
        self._fresh = dict(vars(base))
        self._sent = ArrayRecord()  # the weights of this round's training messages

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """What a resumed run needs of this strategy: tensors, and plain values."""
        facts: dict[str, Any] = {"rate": self.rate and self.rate.state(), "left_out": self.left_out}
        facts["noticed"] = {str(client): words for client, words in self.trust.noticed.items()}
        if isinstance(self.base, AlgorithmStrategy):
            return self.base.state, facts
        # a strategy of Flower's: what it has set since it was made would have to be saved, and in a way it knows
        facts["unsaved"] = sorted(k for k, value in vars(self.base).items() if value is not self._fresh.get(k, self))
        return {}, facts

    def restore(self, done: int, server: Weights, facts: Mapping[str, Any]) -> None:
        """Take over where an earlier process stood after round ``done``: what its ``state`` gave.

        Raises FedgeoError where that was not saved whole.
        """
        if unsaved := facts.get("unsaved"):
            raise FedgeoError(
                f"{type(self.base).__name__} keeps {', '.join(unsaved)} from round to round, which no checkpoint "
                "holds: a run of it cannot be resumed"
            )
        self.done, self.resumed = done, True
        if self.rate is not None:
            self.rate.restore(facts["rate"])
        self.left_out = tuple(facts.get("left_out", ()))
        self.trust.noticed = {int(client): words for client, words in facts.get("noticed", {}).items()}
        if isinstance(self.base, AlgorithmStrategy):
            self.base.state = server

    def record(self) -> dict[str, Any] | None:
        """What the clients drew, as plain values: samples by class before and after, along what. None for nothing."""
        return None

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
        """Flower's own loop, after the phases. Any ``grid``: its clients are found where that has not been done.

        ``initial_arrays`` may be empty: a client is then asked for the model's initial weights, which its
        configuration decides. ``num_rounds`` counts those of an earlier process, which are not done again: Flower
        counts from 1, and all else here by the run's own rounds. Raises FedgeoError where the clients do not go
        together, or too many of them fail.
        """
        if isinstance(grid, CohortGrid):
            clients = grid
        else:
            clients = CohortGrid(grid)
            clients.connect(messages.Agreed(secrets.token_hex(8), self.code), self.limits)
        self.sites = clients.names
        self.hello = self.hello or shake_hands(clients, self.limits, self.code, self.classes)
        if isinstance(self.base, AlgorithmStrategy):
            self.base.begin(self.hello)
        check_tolerance(self.base, participants(self.participation, len(clients.clients)))
        config = ConfigRecord(dict(train_config or {}))
        if self.planner is not None:
            messages.write_steps(config, self.planner(self.hello))
        self._grid, self.masks = clients, self.masked_sums(clients)
        self.prepare(clients, config)
        if self.init is not None and not self.resumed:
            initial_arrays = messages.weights_record(self.head(clients, self.init))
        elif not initial_arrays and self.shares:
            initial_arrays = self.initial_arrays(clients)

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            return evaluate_fn(number and self.done + number, arrays)

        return super().start(
            clients,
            initial_arrays,
            (1 if self.one_round else num_rounds) - self.done,
            timeout,
            config,
            evaluate_config,
            None if evaluate_fn is None else evaluate,
        )

    def masked_sums(self, grid: CohortGrid) -> MaskedSums | None:
        """What opens the clients' masked sums; None where they are not masked. FedgeoError where sites want it."""
        assert self.hello is not None
        if not self.masked:
            if self.hello.privacy.masked:
                raise FedgeoError("a site's policy has masked: true: set privacy.masked=true in the run")
            return None
        few = self.few(self.hello.clients)
        known = [label for label in range(len(self.hello.classes)) if label not in few]
        run = "" if grid.agreed is None else grid.agreed.run
        return MaskedSums(self.hello, run, grid.names, known)

    def validated(self, loss: float) -> None:
        """A round has ended with this mean validation loss, by which the learning rate may be scheduled."""
        if self.rate is not None:
            self.rate.step(loss)

    @property
    def shares(self) -> bool:
        """Whether clients exchange weights at all."""
        return not isinstance(self.base, AlgorithmStrategy) or self.base.algorithm.shares

    def initial_arrays(self, grid: CohortGrid) -> ArrayRecord:
        """query.initial: the model's initial weights, which are the same at every client."""
        request = Message(RecordDict(), grid.clients[0], messages.INITIAL)
        (reply,) = self.check(messages.INITIAL, grid.send_and_receive([request], timeout=self.limits.deadline))
        return reply.content.array_records[messages.ARRAYS]

    def prepare(self, grid: CohortGrid, config: ConfigRecord) -> None:
        """Further phases before the first round; ``config`` goes with every training message."""

    def head(self, grid: CohortGrid, method: FromStatistics) -> Weights:
        """The head that ``method`` makes of the clients' class statistics."""
        assert self.hello is not None
        return method.head(self.class_statistics(grid, method.covariances), len(self.hello.classes), self.seed)

    def class_statistics(self, grid: CohortGrid, covariances: bool) -> list[ClassStatistics]:
        """query.stats: every client's class statistics, in client order."""
        assert self.hello is not None
        self.check_enough(self.hello.clients)  # else what is asked for could not be used
        what = "covariances" if covariances else "means"
        if self.masks is not None:
            return [self.masked_statistics(grid, what)]
        content = messages.statistics_content(what)
        parts = {
            reply.metadata.src_node_id: ClassStatistics.from_arrays(
                messages.from_record(reply.content.array_records[messages.ARRAYS]),
                origin=named(reply.metadata.src_node_id, grid.names),
            )
            for reply in self.ask(grid, messages.STATISTICS, content)
        }
        return list(self.admitted(parts).values())

    def masked_statistics(self, grid: CohortGrid, what: str) -> ClassStatistics:
        """query.stats: the class statistics of all clients together, opened from their masked parts."""
        assert self.masks is not None
        content = messages.statistics_content(what)
        self.masks.write(content.config_records[messages.CONFIG])
        return self.masks.statistics(self.ask(grid, messages.STATISTICS, content), what)

    def admitted(self, parts: dict[int, Statistics]) -> dict[int, Statistics]:
        """The clients' statistics as they are merged, without classes of too few samples in all to tell all clients."""
        assert self.hello is not None
        few = self.few(parts)
        kept = {client: part.only(~np.isin(part.classes, few)) for client, part in parts.items()}
        held = dict(zip(self.hello.clients, self.hello.counts.sum(axis=1).tolist(), strict=True))
        return self.trust.statistics(kept, held, self.hello.classes, self.sites)

    def few(self, clients: Iterable[int]) -> list[int]:
        """The classes of which these clients have too few samples. FedgeoError where there is no other class."""
        assert self.hello is not None
        clients, privacy = list(clients), self.hello.privacy
        found = self.hello.few(clients)
        self.left_out = tuple(self.hello.classes[label] for label in found)
        if self.left_out:
            names = ", ".join(self.left_out)
            log(INFO, "fewer than privacy.min_total=%d samples in all: %s", privacy.min_total, names)
        self.check_enough(clients)
        return found

    def check_enough(self, clients: Iterable[int]) -> None:
        """FedgeoError where these clients together have too few samples of every class."""
        assert self.hello is not None
        privacy = self.hello.privacy
        if not (self.hello.held(clients) >= privacy.min_total).any():
            raise FedgeoError(
                f"no class has privacy.min_total={privacy.min_total} samples of clients that hold privacy.min_count="
                f"{privacy.min_count} each: there is nothing to share; choose method=fedavg augmentation=none"
            )

    def ask(self, grid: CohortGrid, kind: str, content: RecordDict, deadline: float | None = None) -> list[Message]:
        """One phase: ask every client, and return the replies; failures count as in a round."""
        return ask(grid, self.limits, kind, content, deadline)

    def check(self, what: str, replies: Iterable[Message]) -> list[Message]:
        """The good replies, sorted by client. Raises FedgeoError with a client's own error where too many failed."""
        return good(what, replies, self.limits, self.sites)

    def participants(self, server_round: int, clients: list[int]) -> list[int]:
        """This round's clients, a function of the seed and the round alone."""
        if self.participation == "all":
            return clients
        number = participants(self.participation, len(clients))
        rng = np.random.default_rng([self.seed, server_round])
        return sorted(int(c) for c in rng.choice(clients, size=number, replace=False))

    # --- a round is the base's, among this round's participants ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The base's messages to this round's participants. ``grid`` is the one that ``start`` made."""
        grid = self.cohort(grid)
        server_round += self.done
        grid.select(self.participants(server_round, grid.clients))
        if self.rate is not None:
            config["lr"] = self.rate.lr
        self._sent = arrays
        if self.masks is not None:
            self.masks.write(config)
        return self.base.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the base makes of the good replies, in the types in which the weights were sent."""
        server_round += self.done
        answered = self.check(f"round {server_round}", replies)
        check_tolerance(self.base, len(answered))
        if self.masks is not None:
            answered = self.opened(self.masks, server_round, answered)
        else:
            answered = self.trust.updates(server_round, answered, self._sent, self.sites)
        arrays, metrics = self.base.aggregate_train(server_round, answered)
        # some of Flower's strategies make float64 of what they were given
        return (None if arrays is None else messages.as_sent(arrays, self._sent)), metrics

    def opened(self, masks: MaskedSums, server_round: int, replies: list[Message]) -> list[Message]:
        """A round's masked replies as one, of a client that is all of them: enough for what takes their mean."""
        assert self._grid is not None
        weights, loss, examples = masks.mean(replies, server_round, self._sent)
        self._grid.note_loss(examples, loss)
        metrics = {"num-examples": examples, "train_loss": loss}
        replies[0].content[messages.ARRAYS] = messages.weights_record(weights)
        replies[0].content[messages.METRICS] = messages.metrics_record(metrics)
        return replies[:1]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to every client, whoever has trained; none where the server evaluates."""
        grid = self.cohort(grid)
        if self.central:
            return []
        grid.select()
        config["server-round"] = self.done + server_round
        content = RecordDict({messages.ARRAYS: arrays, messages.CONFIG: config})
        return [Message(content, client, messages.EVALUATE) for client in grid.get_node_ids()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Accuracy and mean cross-entropy over the test samples of all clients; None where there are none."""
        if self.central:
            return None
        counted = self.check(f"evaluation of round {self.done + server_round}", replies)
        self.evaluated = {reply.metadata.src_node_id: messages.read_evaluation(reply.content) for reply in counted}
        return messages.test_metrics(self.evaluated.values())

    def cohort(self, grid: Grid) -> CohortGrid:
        """``grid``, whose node ids are clients. FedgeoError for any other, as a strategy around this one would pass."""
        if not isinstance(grid, CohortGrid):
            name = type(self).__name__
            raise FedgeoError(f"{name} must be started itself: put other wrappers inside of it, {name}(Wrapper(base))")
        return grid


def participants(wanted: Literal["all"] | float, clients: int) -> int:
    """How many of so many clients take part in a round. wanted: "all", a share below 1, or a number."""
    if wanted == "all":
        return clients
    return max(1, int(wanted * clients)) if isinstance(wanted, float) else min(int(wanted), clients)
