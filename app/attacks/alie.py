"""A little is enough (Baruch, Baruch and Goldberg, 2019): just far enough from the mean not to be an outlier.

Every hostile client sends  mu - z sigma,  coordinate by coordinate, mu and sigma (divisor n) being mean and deviation
of what the hostile clients have learned honestly: the paper's attackers without knowledge of the others, who stand for
them. The paper's z = Phi^-1((n - f - s) / (n - f)), s = floor(n/2 + 1) - f, is 0 for ten clients of which two are
hostile, which is no attack; so z is a setting.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..algorithms.base import Positive
from ..models.base import Weights
from .base import Attack, Changed


@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """z: deviations from the mean."""

    name: ClassVar[str] = "alie"
    changes: ClassVar[Changed] = "weights"
    together: ClassVar[bool] = True
    least: ClassVar[int] = 2

    z: Positive = 1.5

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        sent = {}
        for name, w in start.items():
            all_of_them = torch.stack([own[name].double() for own in learned.values()])
            sent[name] = (all_of_them.mean(0) - self.z * all_of_them.std(0, correction=0)).to(w.dtype)
        return sent
