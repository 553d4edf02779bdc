"""Where a run stands, saved after every round, and how another process goes on from there."""

from collections.abc import Sequence

from ..common.errors import FedgeoError
from ..data.experiment import Experiment
from ..grids.cohort import Traffic
from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from ..strategies.base import FedgeoStrategy
from .rounds import Callback, Round


class Checkpoints(Callback):
    """Saves the strategy's state and that of ``parts``, the callbacks that have any; the last thing done of a round."""

    def __init__(self, results: RunDirectory, strategy: FedgeoStrategy, parts: Sequence[Callback]) -> None:
        self.results = results
        self.strategy = strategy
        self.parts = parts

    def on_start(self, weights: Weights, traffic: Traffic) -> None:
        if self.results.checkpoint is None:
            self.save(0, weights)

    def on_round(self, done: Round) -> None:
        self.save(done.number, done.weights)

    def save(self, number: int, weights: Weights) -> None:
        """The checkpoint of round ``number``."""
        server, facts = self.strategy.state()
        tensors = {"weights": weights, "server": server}
        for part in self.parts:
            own_tensors, own_facts = part.state()
            tensors |= own_tensors
            facts |= own_facts
        facts["seconds"] = (self.results.seconds, self.results.cpu_seconds)
        self.results.save_checkpoint(Checkpoint(number, tensors, facts))

    def go_on(self, checkpoint: Checkpoint, experiment: Experiment) -> Weights:
        """Restore the strategy and ``parts``. Returns the weights to go on with.

        Raises FedgeoError where the clients' share of the state is lost.
        """
        weights = checkpoint.group("weights")
        if self.results.stateless and checkpoint.round and clients_have_state(experiment, weights):
            raise FedgeoError(
                f"resume={self.results.path}: the state of its clients for method={experiment.config.method.name} is "
                "gone, as it is once a run is complete: only a run that was broken off can be continued"
            )
        self.strategy.restore(checkpoint.round, checkpoint.group("server"), checkpoint.facts)
        for part in self.parts:
            part.restore(checkpoint)
        self.results.earlier_seconds, self.results.earlier_cpu_seconds = map(float, checkpoint.facts["seconds"])
        return weights


def clients_have_state(experiment: Experiment, weights: Weights) -> bool:
    """Whether a client's next round depends on more than what it is sent."""
    algorithm = experiment.algorithm
    return bool(
        experiment.config.training.keep_moments
        or not algorithm.shares
        or algorithm.centralised
        or algorithm.client_state(weights)
        or experiment.model().local_state()
    )
