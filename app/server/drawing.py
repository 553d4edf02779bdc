"""The figures of a run and the files beside them: what is known before the first round, and what is at the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.federated_dataset import FederatedDataset
from ..geometry.similarity import DomainSimilarity
from ..grids.cohort import Traffic
from ..models.base import Weights
from ..reports import figures
from ..runs.checkpoint import Checkpoint
from ..runs.run_directory import RunDirectory
from ..strategies.base import FedgeoStrategy
from .rounds import Callback, Round


class Drawing(Callback):
    """Draws into the run directory's folder figures/."""

    def __init__(self, results: RunDirectory, strategy: FedgeoStrategy, dataset: FederatedDataset) -> None:
        self.results = results
        self.strategy = strategy
        self.dataset = dataset
        self.folder = results.path / "figures"
        self.confusion: np.ndarray | None = None  # of the last round's test samples

    def on_start(self, weights: Weights, traffic: Traffic) -> None:
        if self.results.checkpoint is not None:
            return  # a resumed run has them
        handshake = self.strategy.hello
        assert handshake is not None
        names = [f"{domain or 'client'} {k}" for k, domain in zip(handshake.clients, handshake.domains, strict=True)]
        figures.label_distribution(handshake.counts, handshake.classes, self.folder / "label_distribution.png", names)
        if (record := self.strategy.record()) is not None:
            self.results.write_json("augmentation.json", record)
        if self.strategy.similarities:
            self.draw_similarities(self.strategy.similarities, self.folder / "similarity.png")

    def on_round(self, done: Round) -> None:
        self.confusion = done.scores["test"].confusion

    def on_end(self) -> None:
        rows = self.results.rows
        figures.curves(rows, self.folder / "curves.png", self.results.config.metric.name)
        assert self.confusion is not None
        figures.confusion(self.confusion, self.dataset.classes, self.folder / "confusion.png")
        counts = {"round": len(rows), "classes": self.dataset.classes, "counts": self.confusion.tolist()}
        self.results.write_json("confusion.json", counts)
        if len(rows[-1]["accuracy_by_domain"]) > 1:
            figures.domain_bars(rows[-1]["accuracy_by_domain"], self.folder / "domains.png")

    def draw_similarities(self, similarities: Sequence[DomainSimilarity], path: Path) -> None:
        """Figure 6 for the two domains with the most classes to compare, and the figures of all pairs."""
        shown = max(similarities, key=lambda pair: len(pair.labels))
        names = [self.dataset.classes[label] for label in shown.labels]
        figures.similarity_heatmap(shown.matrix, names, names, path, *shown.domains)
        self.results.write_json("similarity.json", [pair.record() for pair in similarities])

    def state(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        return ({} if self.confusion is None else {"test": {"confusion": torch.from_numpy(self.confusion)}}), {}

    def restore(self, checkpoint: Checkpoint) -> None:
        if checkpoint.round:
            self.confusion = checkpoint.group("test")["confusion"].numpy()
