"""Whether a run has learned anything: what to say of one that ends with a model no better than chance."""

import math
from typing import Any

import numpy as np

from ..algorithms.base import Algorithm
from ..augmentation import registry as augmentation
from ..config.schema import Config
from ..data.experiment import Experiment
from ..models.base import Weights
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from .rounds import Callback, Round


class Collapse(Callback):
    """Warns, at the end, of a model that predicts one class alone and of a training loss above that of chance.

    Of methods that add to the cross-entropy the loss says nothing, so of theirs the predictions alone count.
    """

    def __init__(self, results: RunDirectory, experiment: Experiment) -> None:
        self.results = results
        self.classes = experiment.dataset.classes
        objective = augmentation.load(results.config.augmentation).objective(experiment.algorithm, len(self.classes))
        self.plain_loss = type(objective).loss is Algorithm.loss
        self.found: str | None = None

    def on_round(self, done: Round) -> None:
        loss = done.traffic.train_loss if self.plain_loss else None
        signs = signs_of_collapse(done.scores["test"].confusion, loss, self.classes)
        self.found = f"round {done.number}: {' and '.join(signs)}: {advice(self.results.config)}" if signs else None

    def on_end(self) -> None:
        if self.found is not None:
            self.results.warn(self.found)

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return {}, {"collapse": self.found}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.found = checkpoint.facts.get("collapse")


def signs_of_collapse(confusion: np.ndarray, train_loss: float | None, classes: tuple[str, ...]) -> list[str]:
    """What tells that a model is no better than chance.

    confusion: int (C, C), true classes in rows. train_loss: the clients' mean cross-entropy in nats, None where that is
    not what they minimise; by chance it is log C.
    """
    signs = []
    predicted, held = np.flatnonzero(confusion.sum(axis=0)), np.flatnonzero(confusion.sum(axis=1))
    if len(predicted) == 1 and len(held) > 1:
        signs.append(f"the model predicts class {classes[predicted[0]]} for all test samples")
    if train_loss is not None and train_loss > math.log(len(classes)):
        signs.append(
            f"the training loss, {train_loss:.2f}, is above that of chance among {len(classes)} classes, "
            f"{math.log(len(classes)):.2f}"
        )
    return signs


def advice(config: Config) -> str:
    """What to change of a run that has learned nothing."""
    rate = f"lower training.lr={config.training.lr:g}, or give it more federation.rounds"
    if config.data.family == "eeg" and config.model.kind == "spdnet" and not config.covariances.recentre:
        return f"set covariances.recentre=true, or {rate}"
    return rate
