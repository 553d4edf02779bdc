"""The models that a run saves, and what of them the sites of a deployment are sent."""

import logging
from typing import Any

from flwr.app import Message, RecordDict

from .. import messages
from ..data.federated_dataset import FederatedDataset
from ..grids.cohort import CohortGrid
from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from ..runs.summary import val_metric
from .round_lines import TrafficTotal
from .rounds import Callback, Round

log = logging.getLogger(__name__)


class SavedModels(Callback):
    """model-final is the last round's; model-best that of the best validation round, or the last without.

    Where nothing is shared there is no common model to save.
    """

    def __init__(self, results: RunDirectory, dataset: FederatedDataset) -> None:
        self.results = results
        self.dataset = dataset
        self.best_score = float("-inf")
        self.best: Weights = {}
        self.final: Weights = {}

    def on_round(self, done: Round) -> None:
        if not done.weights:
            return
        self.final = done.weights
        self.results.save_model("final", self.final, self.dataset)
        key = val_metric(self.results.config)
        score = done.row.get(key, done.number)
        if key == "val_loss":
            score = -score
        if score > self.best_score:
            self.best_score, self.best = score, done.weights
            self.results.save_model("best", self.best, self.dataset)

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return {"best": self.best}, {"best": self.best_score}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.best_score = float(checkpoint.facts["best"])
        self.final, self.best = checkpoint.group("weights"), checkpoint.group("best")
        if checkpoint.round and self.final:
            self.results.save_model("final", self.final, self.dataset)
        if self.best:
            self.results.save_model("best", self.best, self.dataset)


class HandOver(Callback):
    """At the end every site of a deployment gets the final model. One that cannot be reached does not undo the run."""

    def __init__(self, grid: CohortGrid, models: SavedModels, total: TrafficTotal, deadline: float) -> None:
        self.grid = grid
        self.models = models
        self.total = total
        self.deadline = deadline

    def on_end(self) -> None:
        if not self.grid.names or not self.models.final:
            return
        content = RecordDict({messages.ARRAYS: messages.weights_record(self.models.final)})
        self.grid.select()
        requests = [Message(content, client, messages.FINAL) for client in self.grid.get_node_ids()]
        for reply in self.grid.send_and_receive(requests, timeout=self.deadline):
            if reply.has_error():
                client = reply.metadata.src_node_id
                log.warning("site %s has not taken the final model: %s", self.grid.names[client], reply.error.reason)
        self.total.bytes_down += self.grid.take_traffic().bytes_down
