"""Centred clipping (Karimireddy, He and Jaggi, 2021): what clients have learned, clipped to a ball round the last step.

With x_k = w_k - w_t of the K participants, v_0 the step of the last round (0 before the first), and l = 1 .. L

    v_l = v_{l-1} + (1/K) sum_k (x_k - v_{l-1}) min(1, tau / |x_k - v_{l-1}|),        w_{t+1} = w_t + v_L.

Norms are over all weights together. All clients weigh the same, as what a client says of its size may be false. The
paper has clients send momenta, and one tau for all rounds; here they send their change, whose size falls as training
goes on, so that tau may also be the median of the distances |x_k - v_{l-1}|: that of a client that is no outlier while
fewer than half are hostile. With tau above all distances it is FedAvg with equal weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from ..models.base import Weights
from ..models.weights import flat, shaped
from .base import Algorithm, Positive, Update


@dataclass(frozen=True)
class CentredClipping(Algorithm):
    """radius: tau; None: the median distance. iterations: L. The server keeps v_L."""

    radius: Positive | None = None
    iterations: Annotated[int, Field(ge=1)] = 3

    def server_state(self, weights: Weights) -> Weights:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        old = flat(weights, weights)
        step = flat(state, weights)
        changes = torch.stack([flat(u.weights, weights) for u in updates]) - old
        for _ in range(self.iterations):
            away = changes - step
            norms = away.norm(dim=1)
            radius = norms.quantile(0.5) if self.radius is None else self.radius
            step = step + (away * (radius / norms.clamp(min=1e-30)).clamp(max=1.0)[:, None]).mean(0)
        return shaped(old + step, weights), shaped(step, weights)
