"""Inner product manipulation (Xie, Koyejo and Gupta, 2019): the opposite of the honest mean, epsilon times as far.

Every hostile client sends  w_t - epsilon mean_k (w_k - w_t).  The paper's attackers know what all honest clients have
learned; here the mean is over what the hostile ones have learned honestly, who stand for them. With f of n clients
hostile a mean of all turns round where epsilon > (n - f) / f.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..algorithms.base import Positive, average
from ..models.base import Weights
from .base import Attack, Changed


@dataclass(frozen=True)
class InnerProductManipulation(Attack):
    """epsilon: times the mean."""

    name: ClassVar[str] = "ipm"
    changes: ClassVar[Changed] = "weights"
    together: ClassVar[bool] = True

    epsilon: Positive = 10.0

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        mean = average(learned.values(), [1.0] * len(learned))
        return {name: w - self.epsilon * (mean[name] - w) for name, w in start.items()}
