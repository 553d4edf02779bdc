"""What every model is to the training loop and to the server, and how it is built of its settings.

A new model is one file with a ``Model`` and its ``Architecture``, a frozen dataclass whose fields are the settings,
and one file in conf/model that names it: see registry.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


class Output(NamedTuple):
    """A forward pass: the representation (..., d) before the classifier, and the logits (..., C)."""

    representation: Tensor
    logits: Tensor


class Model(nn.Module):
    """A classifier whose exchanged weights are named tensors.

    ``export`` and ``load`` speak in what clients and server exchange. A name that begins with ``stiefel.``
    holds a matrix with orthonormal columns, so that the server knows which entries to average on the manifold.
    What ``export`` leaves out (batch-norm statistics) stays with its client: see ``local_state``.
    """

    inputs: ClassVar[Literal["embeddings", "covariances", "trials"]] = "embeddings"  # what it reads
    generator: torch.Generator | None = None  # what a model draws from while it trains (dropout); the loop sets it

    def forward(self, x: Tensor) -> Output:
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw fresh initial weights from ``generator``."""
        raise NotImplementedError

    def blank_input(self) -> Tensor:
        """One input (1, ...) that the model takes, of its sizes and type."""
        raise NotImplementedError

    def export(self) -> Weights:
        """Detached copies of the exchanged weights."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take the exchanged weights over; a missing, unknown or misshapen name raises KeyError or ValueError."""
        parameters = dict(self.named_parameters())
        if parameters.keys() != weights.keys():
            raise KeyError(f"weights {sorted(weights)} do not fit the model's {sorted(parameters)}")
        for name, p in parameters.items():
            if p.shape != weights[name].shape:
                raise ValueError(f"{name}: expected shape {tuple(p.shape)}, got {tuple(weights[name].shape)}")
            p.copy_(weights[name])

    def local_state(self) -> Weights:
        """Buffers that a client keeps for itself between rounds (none for most models)."""
        return {}

    def load_local_state(self, state: Weights) -> None:
        """Restore what ``local_state`` returned; an empty dict leaves a fresh model as it is."""

    def calibrate(self, x: Tensor) -> None:
        """Make the local state anew from unlabelled inputs x (n, ...), where the model has one."""

    def clamped_fraction(self, x: Tensor) -> float | None:
        """The share of eigenvalues that a threshold of the model clamps on inputs x (n, ...); None without one."""
        return None


@dataclass(frozen=True)
class Architecture:
    """The settings of one kind of model, which are the subclass's fields, and how it is built.

    name: what errors call it. model: what is built. only_method: the one method that trains it, None for any.
    notes: what goes into a saved model's metadata beside its settings.
    """

    name: ClassVar[str] = "model"
    model: ClassVar[type[Model]] = Model
    only_method: ClassVar[str | None] = None
    notes: ClassVar[Mapping[str, str]] = {}

    @property
    def family(self) -> Literal["images", "eeg"]:
        """Of the data that it reads."""
        return "images" if self.model.inputs == "embeddings" else "eeg"

    @property
    def is_linear_head(self) -> bool:
        """Whether it is one linear layer on embeddings: such clients train side by side, and have a closed form."""
        return False

    @property
    def first_head(self) -> str:
        """The weights of the first round: ``zeros`` for the model's own fresh ones; see ``model.init``."""
        return "zeros"

    def build(self, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
        """A fresh model. inputs: what the data set says of its samples: ``dimension``, or ``channels`` and more.

        stiefel: whether the federation keeps orthonormal weights on their manifold; else they are free matrices.
        """
        raise NotImplementedError

    def hidden_units(self, inputs: Mapping[str, Any]) -> int:
        """The widest layer before the last one, which acts on each sample by itself; ``inputs`` as for ``build``."""
        return 0

    def warning(self, row: Mapping[str, Any]) -> str | None:
        """What a person should look at before believing a round; row: its line of rounds.jsonl."""
        return None
