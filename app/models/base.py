"""What every model is to the training loop and to the server."""

from typing import NamedTuple

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

    generator: torch.Generator | None = None  # what a model draws from while it trains (dropout); the loop sets it

    def forward(self, x: Tensor) -> Output:
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw fresh initial weights from ``generator``."""
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
