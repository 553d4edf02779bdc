"""FedProto (Tan et al., 2022): clients agree on where each class lies in the space of representations.

Client:  minimise  CE + lambda (1/d) ||z - P_y||^2  over the samples whose class y has a global prototype P_y,
         z (d,) the representation; after training it sends, per class, the sum and the count of its z.
Server:  P_i = sum over clients of the sums / sum of the counts  (their mean prototypes, weighted by count),
         and w_{t+1} = sum_k (n_k / n) w_k.

The distance is the mean squared error. A class that no participant holds keeps its last prototype; one that nobody
ever held has none, and its samples no penalty, as in the first round. On frozen embeddings the input of a linear
head has no parameters to penalise; the representation is then the logits, or the hidden layer where the model has
one. The original averages prototypes only and keeps the models apart; here the weights are averaged too, so that
there is one global model to compare. lambda = 0 is FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.base import Weights
from .base import Algorithm, Forward, Local, NonNegative, Trained, Update, cross_entropy


@dataclass(frozen=True)
class FedProto(Algorithm):
    """lambda_: weight of the distance to the prototype.

    Up: 'sum' (C, d) and 'count' (C,). Kept by the server and sent down: 'prototype' (C, d) and 'known' (C,), 1
    for a class that has one, else 0; nothing before the first round.
    """

    lambda_: NonNegative = 2.0

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        representation, logits = forward(weights, x)
        loss = cross_entropy(logits, y)
        if "prototype" not in local.auxiliary:
            return loss
        distance = (representation - local.auxiliary["prototype"][y]).square().mean(-1)
        return loss + self.lambda_ * local.auxiliary["known"][y] * distance

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        total: Weights = {}
        for x, y in trained.data():
            z, logits = trained.forward(trained.weights, x)
            one_hot = F.one_hot(y, logits.shape[-1]).double()
            batch = {"sum": one_hot.mT @ z.double(), "count": one_hot.sum(0)}
            total = {name: total[name] + value for name, value in batch.items()} if total else batch
        return {name: value.to(z.dtype) for name, value in total.items()}, {}

    def rounded(self, auxiliary: Weights, step: int) -> Weights:
        counts = torch.div(auxiliary["count"], step, rounding_mode="floor") * step
        share = counts / auxiliary["count"].clamp(min=1)
        return {"sum": auxiliary["sum"] * share[:, None], "count": counts}

    def withhold(self, auxiliary: Weights, classes: Sequence[int]) -> Weights:
        kept = {name: value.clone() for name, value in auxiliary.items()}
        for value in kept.values():
            value[list(classes)] = 0
        return kept

    def auxiliary(self, state: Weights) -> Weights:
        return state

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        new, _ = super().aggregate(weights, state, updates, clients)
        first = updates[0].auxiliary["sum"]
        sums = torch.stack([u.auxiliary["sum"].double() for u in updates]).sum(0)
        counts = torch.stack([u.auxiliary["count"].double() for u in updates]).sum(0)
        held = counts > 0
        prototype = torch.where(held[:, None], sums / counts.clamp(min=1)[:, None], 0.0).to(first.dtype)
        known = held.to(first.dtype)
        if state:
            prototype = torch.where(held[:, None], prototype, state["prototype"])
            known = torch.maximum(known, state["known"])
        return new, {"prototype": prototype, "known": known}
