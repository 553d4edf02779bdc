"""CCVR (Luo et al., 2021): the head is trained on the server, on virtual samples from the classes' Gaussians.

Each class c is represented by samples of N(mu_c, Sigma_c), mu_c and Sigma_c merged from the clients (Eq. 4), in
proportion to its share N_c / N. The paper calibrates the head of a network that was trained by federated rounds; here
the features are frozen, so that what those rounds would have trained is the very head that is replaced. It starts
from zero (the loss is convex), and no rounds are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from ..algorithms.base import Local, Positive
from ..algorithms.fedavg import FedAvg
from ..augmentation.augmented_set import AugmentedSet
from ..augmentation.sources import Filling
from ..common.errors import FedgeoError
from ..common.seeds import VIRTUAL, generator
from ..geometry.class_geometry import Geometry, geometry
from ..geometry.class_statistics import ClassStatistics, merge
from ..geometry.closed_form import Head, place
from ..models.linear import Head as Linear
from ..training.plain import LocalSettings, train
from ..training.samples import TensorSet
from .from_statistics import FromStatistics

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class CCVR(FromStatistics):
    """samples: virtual samples a class, on average. epochs, batch_size, lr: of the server's SGD (momentum 0.9)."""

    samples: Count = 500
    epochs: Count = 20
    batch_size: Count = 64
    lr: Positive = 0.3

    def solve(self, parts: Sequence[ClassStatistics], classes: int, seed: int) -> Head:
        merged = merge(parts)
        x, y = virtual(geometry(merged, explained=1.0), self.samples, classes, seed)
        held = np.searchsorted(merged.classes, y)  # the head is trained on the classes that there are
        model = Linear(merged.dimension, len(merged))
        settings = LocalSettings(self.epochs, self.batch_size, "sgd", self.lr, momentum=0.9, weight_decay=1e-5)
        start = {name: torch.zeros_like(value) for name, value in model.export().items()}
        found = train(model, TensorSet(x, held), FedAvg(), Local(start), settings, generator(seed, VIRTUAL)).weights
        weight, bias = (found[f"linear.{name}"].double().numpy() for name in ("weight", "bias"))
        return place(merged, weight, bias, classes)


def virtual(shapes: Geometry, samples: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x float32 (n, p), y int64 (n,): of each class about ``samples`` * C * N_c / N samples of N(mu_c, Sigma_c)."""
    total = samples * len(shapes)
    xs, ys = [], []
    for label, count in zip(shapes.classes.tolist(), shapes.counts / shapes.counts.sum() * total, strict=True):
        drawn = AugmentedSet(
            np.empty((0, shapes.dimension), np.float32),
            np.empty(0, np.int64),
            Filling(max(1, round(count))),
            only(shapes, label),
            classes=classes,
            seed=seed,
            client=VIRTUAL,  # so that no client's own samples are drawn again
        )
        x, y = drawn.materialise()
        xs.append(x.numpy())
        ys.append(y.numpy())
    if not xs:
        raise FedgeoError("method=ccvr: no client shared statistics of any class: lower privacy.min_count")
    return np.concatenate(xs), np.concatenate(ys)


def only(shapes: Geometry, label: int) -> Geometry:
    """The geometry of one class."""
    row = shapes.row_of(label)
    assert row is not None
    none, kept = np.empty(0, np.int64), slice(row, row + 1)
    return Geometry(
        shapes.classes[kept],
        shapes.counts[kept],
        shapes.means[kept],
        shapes.shapes[kept],
        none,
        none,
        np.empty((0, shapes.dimension)),
    )
