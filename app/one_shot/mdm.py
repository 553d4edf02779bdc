"""MDM, federated: each class's Riemannian mean merged across sites; a trial belongs to the nearest one."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..algorithms.signature import Template
from ..common.errors import FedgeoError
from ..geometry.spd import tangent_sum
from ..models.base import Model, Weights
from ..models.riemannian import MinimumDistance
from .fitted import Ask, Fitted, search, start, total


@dataclass(frozen=True)
class MDM(Fitted):
    """Minimum distance to the mean. It has no hyper-parameter."""

    by_class: ClassVar[bool] = True

    def model(self, channels: int, classes: int) -> Model:
        return MinimumDistance(channels, classes)

    def questions(self, channels: int, classes: int) -> dict[str, Template]:
        return {"mean": {}, "tangent": {"means": ((classes, channels, channels), torch.float64)}}

    def answer(
        self, question: str, asked: Weights, x: Tensor, y: Tensor, classes: int, memory: MutableMapping[str, Any]
    ) -> Weights:
        of_class = [x[y == label] for label in range(classes)]
        if question == "mean":
            sums = [trials.sum(0) for trials in of_class]
        else:
            sums = [
                tangent_sum(trials, mean) if len(trials) else torch.zeros_like(mean)
                for trials, mean in zip(of_class, asked["means"], strict=True)
            ]
        counts = torch.tensor([float(len(trials)) for trials in of_class], dtype=torch.float64)
        return {"sums": torch.stack(sums), "counts": counts}

    def fit(self, ask: Ask, classes: int) -> Weights:
        pooled = total(ask("mean", {}))
        if not bool((pooled["counts"] > 0).all()):
            raise FedgeoError(f"class number {int(pooled['counts'].argmin())} has no training trial at any client")
        means = [
            start(s / n, f"class number {label}")
            for label, (s, n) in enumerate(zip(pooled["sums"], pooled["counts"], strict=True))
        ]

        def step(points: Tensor) -> tuple[Tensor, Tensor]:
            found = total(ask("tangent", {"means": points}))
            return found["sums"], found["counts"]

        return {"means": search(means, step)}
