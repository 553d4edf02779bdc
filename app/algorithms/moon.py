"""MOON (Li et al., 2021): pull a client's representation towards the global model's, away from its own last one.

Client:  minimise  CE + mu * -log( e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau}) )
         z, z_glob, z_prev: the representation of x by w, by the global w_t, and by the w_k of the client's last
         participation.
Server:  w_{t+1} = sum_k (n_k / n) w_k.

On frozen embeddings the input of a linear head is the same for all three models and the term would have no
gradient; the representation is then the logits, or the hidden layer where the model has one (see models/head.py).
At a client's first participation its previous model is the global one: the term is the constant log 2, and its two
halves cancel in the gradient, so that the client trains as in FedAvg. mu = 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.base import Weights
from .base import Algorithm, Forward, Local, NonNegative, Positive, Trained, cross_entropy


@dataclass(frozen=True)
class Moon(Algorithm):
    """mu: weight of the contrastive term. tau: its temperature. A client keeps its last weights."""

    mu: NonNegative = 1.0
    tau: Positive = 0.5

    def client_state(self, weights: Weights) -> Weights:
        return weights

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        representation, logits = forward(weights, x)
        with torch.no_grad():
            to = forward(local.start, x).representation
            away = forward(local.state, x).representation
        positive = F.cosine_similarity(representation, to, dim=-1)
        negative = F.cosine_similarity(representation, away, dim=-1)
        contrast = F.softplus((negative - positive) / self.tau)  # the -log of the two-way softmax
        return cross_entropy(logits, y) + self.mu * contrast

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        return {}, trained.weights
