"""FedCLIP's model: an attention adapter on the image's embedding, and the text classifier, which stays as it is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Architecture, Model, Output, Weights


class Adapter(Model):
    """logits = W x' / ||x'||,  x' = a * x,  a = softmax(B tanh(A x + c) + d), for embeddings x (..., dimension).

    W (classes, dimension) is no parameter: it is exchanged under the name ``text`` so that a saved model is whole, but
    no step, no weight decay and no method moves it. The representation is x' / ||x'||.
    """

    text: Tensor

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(dimension, dimension)
        self.second = nn.Linear(dimension, dimension)
        self.register_buffer("text", torch.zeros(classes, dimension))

    def forward(self, x: Tensor) -> Output:
        attention = torch.softmax(self.second(torch.tanh(self.first(x))), dim=-1)
        representation = F.normalize(attention * x, dim=-1)
        return Output(representation, representation @ self.text.mT)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """The adapter uniform within 1 / sqrt(dimension); the text classifier zero, until it is given."""
        for layer in (self.first, self.second):
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
        self.text.zero_()

    def blank_input(self) -> Tensor:
        return torch.zeros(1, self.first.in_features)

    def export(self) -> Weights:
        return super().export() | {"text": self.text.detach().clone()}

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        super().load({name: value for name, value in weights.items() if name != "text"})
        if "text" not in weights:
            raise KeyError("weights lack the model's ['text']")
        if weights["text"].shape != self.text.shape:
            raise ValueError(f"text: expected shape {tuple(self.text.shape)}, got {tuple(weights['text'].shape)}")
        self.text.copy_(weights["text"])


@dataclass(frozen=True)
class AdapterArchitecture(Architecture):
    """It has no settings: the embedding says how large it is."""

    name: ClassVar[str] = "clip_adapter"
    model: ClassVar[type[Model]] = Adapter
    only_method: ClassVar[str | None] = "fedclip"

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        return int(inputs["dimension"])

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
        return Adapter(inputs["dimension"], classes)
