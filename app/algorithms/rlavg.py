"""RLAvg (FedSPDnet, Eq. 11): W_{t+1} = R_{W_t}(mean_k L_{W_t}(W_k)) for Stiefel weights; the plain mean for others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from app.algorithms.base import Algorithm, Update
from app.manifolds import rl_avg
from app.models.base import Weights


@dataclass(frozen=True)
class RLAvg(Algorithm):
    """Lift the clients' matrices to the tangent space at the previous global W_t, average, and retract."""

    keeps_manifold: ClassVar[bool] = True
    for_model: ClassVar[str | None] = "spdnet"

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, state = super().aggregate(weights, state, updates, clients)
        shares = [u.examples for u in updates]
        for name in weights:
            if name.startswith("stiefel."):
                mean[name] = rl_avg(weights[name], [u.weights[name] for u in updates], shares, name)
        return mean, state
