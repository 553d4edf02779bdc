"""The local model of GGEUR: a linear layer on frozen embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..config.schema import Count
from .base import Architecture, Model, Output
from .mlp import MLP


class Head(Model):
    """logits = W x + b.

    x: float32 (..., dimension). The embedding is frozen and the same in every model, so that the logits stand in for a
    representation (MOON and FedProto act on them). Weights start at zero: the loss is convex, the start is the uniform
    prediction.
    """

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dimension, classes)

    def forward(self, x: Tensor) -> Output:
        logits = self.linear(x)
        return Output(logits, logits)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def blank_input(self) -> Tensor:
        return torch.zeros(1, self.linear.in_features)


@dataclass(frozen=True)
class LinearArchitecture(Architecture):
    """hidden: units of a hidden layer, which makes it an MLP (model=mlp by another name); 0 for none.

    init: what the rounds start from: see app.strategies.compatibility.first_head.
    """

    name: ClassVar[str] = "linear"
    model: ClassVar[type[Model]] = Head

    hidden: Count = 0
    init: Literal["auto", "zeros", "lda", "ridge"] = "zeros"

    @property
    def is_linear_head(self) -> bool:
        return not self.hidden

    @property
    def first_head(self) -> str:
        return self.init

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        return self.hidden

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
        dimension = inputs["dimension"]
        return MLP(dimension, classes, self.hidden) if self.hidden else Head(dimension, classes)
