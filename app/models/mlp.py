"""A hidden layer on frozen embeddings: the smallest model whose representation is learned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..config.schema import Positive
from .base import Architecture, Model, Output
from .dropout import drop


class MLP(Model):
    """logits = W drop(relu(V x + a)) + b with ``hidden`` units.

    x: float32 (..., dimension). The representation is the hidden layer's output before dropout. dropout: the share of
    units that are left out in training, drawn from ``generator``, which the training loop sets.
    """

    def __init__(self, dimension: int, classes: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.hidden = nn.Linear(dimension, hidden)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Output:
        representation = torch.relu(self.hidden(x))
        kept = drop(representation, self.dropout, self.generator) if self.training else representation
        return Output(representation, self.linear(kept))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Both layers uniform within 1 / sqrt(inputs): at zero they would never leave it."""
        for layer in (self.hidden, self.linear):
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)

    def blank_input(self) -> Tensor:
        return torch.zeros(1, self.hidden.in_features)


@dataclass(frozen=True)
class MLPArchitecture(Architecture):
    """hidden: units of the hidden layer. dropout: the share of them that is left out in training."""

    name: ClassVar[str] = "mlp"
    model: ClassVar[type[Model]] = MLP

    hidden: Positive = 256
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        return self.hidden

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
        return MLP(inputs["dimension"], classes, self.hidden, self.dropout)
