"""Tangent space + logistic regression, federated: the Riemannian mean merged across sites, then one convex fit.

The mean M of all clients' covariances by Karcher steps: each client sends sum_i log(M^{-1/2} S_i M^{-1/2}). At M,
every trial becomes a tangent vector z_i on its own client, and the server minimises
    |W|^2 / (2 C) + sum_i cross-entropy(W z_i + b, y_i)
by L-BFGS over the clients' summed losses and gradients. So the result is that of one site holding all trials. Of two
classes scikit-learn penalises one vector w, the difference of the two rows, which are w / 2 and -w / 2 at the minimum:
|w|^2 / (2 C) is |W|^2 / C there, and C means the same as in scikit-learn for any number of classes.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from ..algorithms.base import Positive
from ..algorithms.signature import Template
from ..geometry.spd import tangent_sum
from ..models.base import Model, Weights
from ..models.riemannian import TangentSpace, tangent_vectors
from .fitted import Ask, Fitted, search, start, total

TOLERANCE = 1e-9  # of the largest entry of the gradient of the mean loss
MOST_ITERATIONS = 200


@dataclass(frozen=True)
class TangentLR(Fitted):
    """C: the inverse strength of the penalty, scikit-learn's C."""

    C: Positive = 1.0

    def model(self, channels: int, classes: int) -> Model:
        return TangentSpace(channels, classes)

    def questions(self, channels: int, classes: int) -> dict[str, Template]:
        mean = {"mean": ((channels, channels), torch.float64)}
        head = {
            "weight": ((classes, channels * (channels + 1) // 2), torch.float64),
            "bias": ((classes,), torch.float64),
        }
        return {"mean": {}, "tangent": mean, "gradient": mean | head}

    def answer(
        self, question: str, asked: Weights, x: Tensor, y: Tensor, classes: int, memory: MutableMapping[str, Any]
    ) -> Weights:
        count = torch.tensor([float(len(x))], dtype=torch.float64)
        if question == "mean":
            return {"sum": x.sum(0), "count": count}
        if question == "tangent":
            return {"sum": tangent_sum(x, asked["mean"]), "count": count}
        mean = asked["mean"]
        if "mean" not in memory or not torch.equal(memory["mean"], mean):
            memory.update(mean=mean, vectors=tangent_vectors(x, mean))
        vectors = memory["vectors"]
        logits = vectors @ asked["weight"].mT + asked["bias"]
        errors = torch.softmax(logits, -1) - F.one_hot(y, classes)
        return {
            "loss": F.cross_entropy(logits, y, reduction="sum").reshape(1),
            "weight": errors.mT @ vectors,
            "bias": errors.sum(0),
        }

    def fit(self, ask: Ask, classes: int) -> Weights:
        pooled = total(ask("mean", {}))

        def step(points: Tensor) -> tuple[Tensor, Tensor]:
            found = total(ask("tangent", {"mean": points[0]}))
            return found["sum"][None], found["count"]

        mean = search([start(pooled["sum"] / pooled["count"], "all trials")], step)[0]
        features = len(mean) * (len(mean) + 1) // 2
        trials = float(pooled["count"])
        strength = self.C / 2 if classes == 2 else self.C

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            """The penalised mean loss and its gradient at (W, b)."""
            values = torch.from_numpy(flat)
            weight, bias = values[:-classes].view(classes, features), values[-classes:]
            found = total(ask("gradient", {"mean": mean, "weight": weight, "bias": bias}))
            loss = (found["loss"] + weight.square().sum() / (2 * strength)) / trials
            slope = torch.cat([(found["weight"] + weight / strength).flatten(), found["bias"]]) / trials
            return float(loss), slope.numpy()

        begin = np.zeros(classes * (features + 1))
        limits = {"maxiter": MOST_ITERATIONS, "gtol": TOLERANCE, "ftol": 0.0}
        solution = torch.from_numpy(minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits).x)
        weight = solution[:-classes].view(classes, features)
        return {"mean": mean, "linear.weight": weight, "linear.bias": solution[-classes:]}
