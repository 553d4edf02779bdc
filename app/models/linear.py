"""The local model of GGEUR: a linear layer on frozen embeddings, optionally behind one hidden layer."""

import math

import torch
from torch import Tensor, nn

from .base import Model, Output


class Head(Model):
    """logits = W x + b, or W relu(V x + a) + b with ``hidden`` units.

    x: float32 (..., dimension). The representation is the hidden layer's output; without one the embedding is
    frozen and the same in every model, so the logits stand in for it (MOON and FedProto act on them).
    Weights start at zero without a hidden layer (the loss is convex, the start is the uniform prediction).
    """

    def __init__(self, dimension: int, classes: int, hidden: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(dimension, hidden) if hidden else None
        self.linear = nn.Linear(hidden or dimension, classes)

    def forward(self, x: Tensor) -> Output:
        if self.hidden is None:
            logits = self.linear(x)
            return Output(logits, logits)
        representation = torch.relu(self.hidden(x))
        return Output(representation, self.linear(representation))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if self.hidden is not None:  # both layers at zero would never leave it
            for layer in (self.hidden, self.linear):
                bound = 1 / math.sqrt(layer.in_features)
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
