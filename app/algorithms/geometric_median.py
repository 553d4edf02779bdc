"""The geometric median of the clients' weights (RFA: Pillutla, Kakade and Harchaoui, 2022).

    w_{t+1} = argmin_w sum_k |w - w_k|,

by Weiszfeld's iteration (app/geometry/robust.py); norms are over all weights together. Fewer than half of the clients
cannot carry it away, whatever they send. The paper weighs clients by their examples; here all weigh the same, as what a
client says of its size may be false.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..geometry.robust import geometric_median
from ..models.base import Weights
from ..models.weights import flat, shaped
from .base import Algorithm, Update


@dataclass(frozen=True)
class GeometricMedian(Algorithm):
    """It has no hyper-parameter."""

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        points = np.stack([flat(u.weights, weights).numpy() for u in updates])
        return shaped(torch.from_numpy(geometric_median(points, np.ones(len(points)))), weights), state
