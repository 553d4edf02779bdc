"""ProjAvg (FedSPDnet, Eq. 7): W_{t+1} = uf(mean_k W_k) for Stiefel weights; the plain mean for all others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from app.algorithms.base import Algorithm, Update
from app.manifolds import proj_avg
from app.models.base import Weights


@dataclass(frozen=True)
class ProjAvg(Algorithm):
    """The mean of the clients' matrices, put back on the Stiefel manifold by its polar factor."""

    keeps_manifold: ClassVar[bool] = True
    for_model: ClassVar[str | None] = "spdnet"

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        mean, state = super().aggregate(weights, state, updates, clients)
        shares = [u.examples for u in updates]
        for name in weights:
            if name.startswith("stiefel."):
                mean[name] = proj_avg([u.weights[name] for u in updates], shares, name)
        return mean, state
