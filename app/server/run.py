"""One run on the server: discover the clients, start the strategy, finish the run directory."""

import contextlib
import logging
import shutil
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from .. import messages
from ..algorithms.centralised import Centralised
from ..algorithms.registry import local_algorithm
from ..attacks import registry as attacks
from ..common.code import code_hash
from ..common.errors import describe
from ..common.logs import log_to
from ..common.seeds import one_thread
from ..config.schema import Config
from ..data.experiment import Experiment, experiment
from ..grids.cohort import CohortGrid
from ..grids.limits import Limits
from ..grids.placement import together
from ..reports import run_report
from ..runs.run_directory import RunDirectory
from ..strategies.base import FedgeoStrategy
from ..strategies.compatibility import asks_what_joining_gave, check
from ..strategies.drawn import NOTHING
from ..strategies.handshake import Handshake, shake_hands
from . import strategy
from .checkpoints import Checkpoints
from .collapse import Collapse
from .drawing import Drawing
from .early_stopping import EarlyStopping, RateSchedule
from .initial import initial_weights
from .joining import NOTHING as NOBODY_ASKED
from .joining import AskWhatJoiningGave
from .privacy_report import privacy_report
from .remote_dataset import remote_dataset
from .reply_validation import ReplyValidator
from .round_lines import DrawnWarnings, Listener, OnRound, RoundLines, TrafficTotal
from .rounds import Callback, Finished, RoundLoop
from .saved_models import HandOver, SavedModels
from .scoring import Scorer

log = logging.getLogger(__name__)

PULL_SECONDS = 0.01  # between two looks for replies in a simulation


def run(
    grid: Grid,
    config: Config,
    run_dir: Path,
    on_round: OnRound | None = None,
    *,
    overrides: str = "",
    state: Path | None = None,
    figures: bool = True,
) -> dict[str, Any]:
    """Run ``config`` over ``grid``, or go on with what ``config.resume`` names, and return the summary.

    Whatever happens after the run directory exists is written there: a run that raises leaves a summary with
    status failed and what it had, and the exception goes on to the caller. overrides: what the nodes were given.
    state: the folder of the simulated nodes' state; it goes once the run is complete. figures: whether there are any,
    and a report.
    """
    if config.engine == "deployment":
        state = None  # the sites' state lies with them, and the server cannot tell whether it is there
    results = RunDirectory(run_dir, config, overrides, state)
    try:
        summary = _run(grid, config, results, on_round, figures)
    finally:
        results.close()
    if state is not None:
        shutil.rmtree(state, ignore_errors=True)
    return summary


def _run(grid: Grid, config: Config, results: RunDirectory, on_round: OnRound | None, figures: bool) -> dict[str, Any]:
    log_to(results.path)
    if hasattr(grid, "pull_interval"):  # a simulation's: its own tenth of a second can be longer than a round
        grid.pull_interval = PULL_SECONDS
    server = Server(CohortGrid(grid), config, results, on_round, figures)
    try:
        with one_thread():
            server.run()
    except BaseException as error:
        summary = results.finish("failed", describe(error), server.facts(), server.warnings())
        if figures:
            run_report.write(results.path, summary)
        raise
    summary = results.finish("completed", None, server.facts(), server.warnings())
    if figures:
        run_report.write(results.path, summary)
    return summary


class Server:
    """What one run knows on the server side; what it does after a round is in its callbacks."""

    def __init__(
        self, grid: CohortGrid, config: Config, results: RunDirectory, on_round: OnRound | None, figures: bool
    ) -> None:
        self.grid = grid
        self.config = config
        self.results = results
        self.on_round = on_round
        self.figures = figures
        self.replies = ReplyValidator(config, grid)
        grid.check = self.replies.check
        self.strategy: FedgeoStrategy | None = None
        self.total = TrafficTotal()
        self.parameters = 0
        self.joining: AskWhatJoiningGave | None = None

    def run(self) -> None:
        """The whole run, from the partition to the last figures."""
        config = self.config
        check(config)
        experiment, hello = self.discover()
        algorithm, dataset = experiment.algorithm, experiment.dataset
        self.results.write_partition(dataset.partition_json())
        self.note_attack(len(dataset))
        for note in getattr(dataset, "notes", ()):
            log.info("%s", note)
        for text in getattr(dataset, "warnings", ()):
            self.results.warn(text)
        for client in () if hello is None else hello.warned:
            self.results.warn(
                f"site {self.grid.names[client]} has data that may change what is learned, or how good it seems: "
                "log.txt in its output-path says what"
            )
        self.replies.expect(algorithm, experiment.model(), len(dataset.domains))
        initial = initial_weights(experiment)
        self.parameters = sum(value.numel() for value in initial.values())
        self.strategy = strategy.build(config, dataset, handshake=hello, folder=self.results.checkpoints)
        callbacks, checkpoints = self.callbacks(experiment, self.strategy)
        if self.results.checkpoint is not None:
            initial = checkpoints.go_on(self.results.checkpoint, experiment)
            drawn = self.strategy.drawn.clients
            self.replies.totals = {client: sum(counts["total"]) for client, counts in drawn.items()}
        loop = RoundLoop(
            self.grid,
            Scorer(experiment, self.strategy, sites=bool(self.grid.names)),
            callbacks,
            config.metric.name,
        )
        with contextlib.suppress(Finished):
            self.strategy.start(
                self.grid,
                messages.weights_record(initial if algorithm.shares else {}),
                num_rounds=strategy.rounds(config),
                timeout=config.federation.deadline,
                evaluate_fn=loop,
            )
        loop.end()

    def note_attack(self, clients: int) -> None:
        """Say who is hostile, in the log and among the run's warnings."""
        if hostile := attacks.hostile(self.config, clients):
            names = ", ".join(map(str, hostile))
            self.results.warn(f"attacked on purpose: attack={self.config.attack.name}, hostile clients {names}")

    def discover(self) -> tuple[Experiment, Handshake | None]:
        """Find the clients, and what they hold: of a simulation it is known, a deployment's sites are asked."""
        config, federation = self.config, self.config.federation
        if config.engine == "deployment":
            agreed = messages.Agreed(self.results.origin.run, code_hash())
            self.grid.gather(agreed, federation.min_nodes, federation.deadline)
            hello = shake_hands(self.grid, Limits.of(federation), code_hash(), federation.classes)
            return Experiment(config, local_algorithm(config), remote_dataset(hello, self.grid.names)), hello
        simulated = experiment(config)
        clients = len(simulated.dataset)
        self.grid.discover(clients, federation.deadline, together(config, clients))
        return simulated, None

    def callbacks(self, experiment: Experiment, strategy: FedgeoStrategy) -> tuple[list[Callback], Checkpoints]:
        """What happens after each round, in this order; and the one that saves where the run stands."""
        results, algorithm = self.results, experiment.algorithm
        models = SavedModels(results, experiment.dataset)
        parts: list[Callback] = [
            self.total,
            DrawnWarnings(results, strategy),
            RateSchedule(strategy),
            RoundLines(results),
            models,
            HandOver(self.grid, models, self.total, self.config.federation.deadline),
            Collapse(results, experiment),
        ]
        if self.figures:
            parts.append(Drawing(results, strategy, experiment.dataset))
        if isinstance(algorithm, Centralised):
            parts.append(EarlyStopping(algorithm.patience))
        if asks_what_joining_gave(self.config):
            self.joining = AskWhatJoiningGave(self.grid, models, self.total, strategy, results, self.figures)
            parts.insert(parts.index(models) + 1, self.joining)  # before sites are told that the run has ended
        checkpoints = Checkpoints(results, strategy, parts)
        listener = [] if self.on_round is None else [Listener(self.on_round)]
        return [*parts, checkpoints, *listener], checkpoints

    def attack(self) -> dict[str, Any] | None:
        """The attack that the run was under, and its settings."""
        chosen = self.config.attack
        return None if chosen.name == "none" else chosen.model_dump()

    def warnings(self) -> list[str]:
        """Who was noticed to be far from the others."""
        return [] if self.strategy is None else list(self.strategy.trust.noticed.values())

    def facts(self) -> dict[str, Any]:
        """What only the server knows, for the summary; also of a run that failed on its way."""
        drawn = NOTHING if self.strategy is None else self.strategy.drawn
        return {
            "privacy": privacy_report(self.strategy),
            "attack": self.attack(),
            "masked": self.config.privacy.masked,
            **(NOBODY_ASKED if self.joining is None else self.joining.found),
            "parameters": self.parameters,
            "added_samples": drawn.added,
            "perturbation_rms": drawn.perturbation_rms,
            "bytes_up": self.total.bytes_up,
            "bytes_down": self.total.bytes_down,
            "peak_memory_mb": max(self.grid.peak_memory_mb, messages.peak_memory_mb()),
        }
