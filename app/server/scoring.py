"""The scores of a round: by the server on samples that it holds, or from what the clients counted on theirs."""

import math
from dataclasses import replace

import numpy as np
import torch

from .. import messages
from ..data.experiment import Experiment
from ..data.federated_dataset import Samples
from ..models.base import Weights
from ..strategies.base import FedgeoStrategy
from ..training.evaluation import Scores, evaluate, f1_macro, scores_from_confusions
from ..training.plain import predict


class Scorer:
    """Scores the global model. sites: whether each client is a site of a deployment, and so a domain."""

    def __init__(self, experiment: Experiment, strategy: FedgeoStrategy, *, sites: bool) -> None:
        self.dataset = experiment.dataset
        self.model = experiment.model()
        self.shares = experiment.algorithm.shares
        self.strategy = strategy
        self.sites = sites
        self.held_out: dict[str, Samples] = {}
        if self.shares:
            self.held_out = {part: self.dataset.held_out(part, None) for part in self.dataset.central}

    def scores(self, weights: Weights) -> dict[str, Scores]:
        """'test' and, where there are validation samples, 'val'. Raises FedgeoError where nothing can be scored."""
        found: dict[str, Scores | None] = {}
        for part in ("val", "test"):
            if part not in self.held_out:
                found[part] = self._pooled(self.strategy.evaluated, part)
            elif len(self.held_out[part]) or part == "test":
                self.model.load(weights)
                found[part] = self._held_out(self.held_out[part])
        return {part: scores for part, scores in found.items() if scores is not None}

    def accuracy_by_client(self) -> dict[str, float] | None:
        """The accuracy of each client's own model on its test samples; None where there is one global model."""
        if self.shares:
            return None
        counted = {k: sum(c for c, _ in parts["test"].values()) for k, parts in self.strategy.evaluated.items()}
        return {str(k): float(np.trace(c) / np.sum(c)) for k, c in counted.items() if np.any(c)}

    def _held_out(self, samples: Samples) -> Scores:
        """The model's scores on samples that the server holds."""
        # nobody's batch statistics fit subjects nobody trained on: their own do
        self.model.calibrate(torch.from_numpy(samples.x))
        outputs = predict(self.model, samples.x)
        return evaluate(outputs, samples.y, samples.domain, self.dataset.domains, self.dataset.classes)

    def _pooled(self, evaluated: dict[int, messages.Evaluation], part: str) -> Scores | None:
        """The scores over all clients' own samples; None where no client has validation samples."""
        entries = [
            (client if self.sites else domain, *counts)  # a site is one domain, whatever it calls it
            for client, parts in evaluated.items()
            for domain, counts in parts[part].items()
        ]
        if part == "val" and not entries:
            return None
        domains, confusions, losses = zip(*entries, strict=True) if entries else ((), (), ())
        scores = scores_from_confusions(confusions, [self.dataset.domains[d] for d in domains], losses)
        own = [np.sum([c for c, _ in parts[part].values()], axis=0) for parts in evaluated.values() if parts[part]]
        return replace(scores, f1_macro_clients=math.fsum(f1_macro(c) for c in own) / len(own))
