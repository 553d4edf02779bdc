"""What a base method is: a local objective, a correction of its gradient, and a server step.

One class serves the plain loop and its batched twin: ``loss`` and ``correct`` work on tensors with any leading
dimensions (none for one client, K for a stacked cohort), and ``finish`` is called for one client at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..models.base import Output, Weights

Forward = Callable[[Weights, Tensor], Output]
Text = Callable[[Sequence[str]], Tensor]  # sentence templates -> CLIP's text classifier of the run's classes, (C, p)

# The ranges of hyper-parameters: ``mu: NonNegative = 0.01``. ``app.algorithms.load`` checks them.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Local:
    """What a client has when a round begins.

    start: the global weights w_t. shared: what the method sends beside them (SCAFFOLD's c, prototypes).
    state: what the client kept from its last participation; at the first, empty for the training loop, which then
    fills in ``Algorithm.client_state`` before any method sees it.
    """

    start: Weights
    auxiliary: Weights = field(default_factory=dict)
    state: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """What the local loop did: the weights w_k it ended with, its number of steps T_k, its lr and momentum."""

    weights: Weights
    steps: int
    lr: float
    momentum: float
    forward: Forward
    data: Callable[[], Iterator[tuple[Tensor, Tensor]]]  # one more pass over the client's (x, y), unshuffled


@dataclass(frozen=True)
class Update:
    """One client's reply: its weights w_k, what the method sends up beside them, and its aggregation weight."""

    client: int
    weights: Weights
    auxiliary: Weights
    examples: float


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample. logits (..., B, C), y int64 (..., B); returns (..., B)."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def average(trees: Iterable[Weights], weights: Sequence[float]) -> Weights:
    """sum_k weights_k tree_k / sum_k weights_k, summed in float64 in the given order, in the trees' own dtypes."""
    total = float(sum(weights))
    sums: Weights = {}
    dtypes: dict[str, torch.dtype] = {}
    for tree, weight in zip(trees, weights, strict=True):
        for name, value in tree.items():
            dtypes[name] = value.dtype
            term = value.double() * (weight / total)
            sums[name] = sums[name].add_(term) if name in sums else term
    return {name: value.to(dtypes[name]) for name, value in sums.items()}


@dataclass(frozen=True)
class Algorithm:
    """FedAvg, and the place of every other method: each overrides only what it changes.

    Subclasses are frozen dataclasses whose fields are the method's hyper-parameters, named as in its paper.
    ``keeps_manifold``: whether weights named ``stiefel.`` are on the Stiefel manifold after the server's step.
    ``shares``: whether clients exchange weights at all; else each goes on from its own.
    ``centralised``: whether one client holds all training samples.
    ``trains``: whether there are rounds of training; else the initial weights are evaluated, once.
    ``needs_text``: whether the initial weights come from CLIP's text tower, which the encoder must then have.
    ``from_mean``: whether a server step of its own needs no more of the updates than their mean, so that masks fit.
    ``for_model``, ``optimisers``, ``min_classes``: what it is made for; a run that differs is refused by name.
    """

    keeps_manifold: ClassVar[bool] = False
    shares: ClassVar[bool] = True
    centralised: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    from_mean: ClassVar[bool] = False
    for_model: ClassVar[str | None] = None
    optimisers: ClassVar[tuple[str, ...]] = ("sgd", "adam")
    min_classes: ClassVar[int] = 2

    def initial(self, weights: Weights, text: Text) -> Weights:
        """The global weights before the first round. weights: the model's fresh ones. text: for ``needs_text``."""
        return weights

    def client_state(self, weights: Weights) -> Weights:
        """What a client keeps from round to round, before its first. weights: the global ones it starts from."""
        return {}

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        """The local objective of each sample, (..., B). x (..., B, p), y (..., B)."""
        return cross_entropy(forward(weights, x).logits, y)

    @property
    def proximal_weight(self) -> float:
        """How strongly a client's weights are drawn back to w_t."""
        return 0.0

    def gradient_offset(self, local: Local) -> Weights:
        """What is added to every gradient of this round, by the weights' names; nothing where it is empty."""
        return {}

    def correct(self, gradients: Weights, weights: Weights, local: Local) -> Weights:
        """The direction to step along, g + offset + mu (w - w_t), from the gradient g of the mean loss.

        Weight decay is added later. A method whose direction is another function of g and w replaces this.
        """
        gradient_offset, proximal_weight = self.gradient_offset(local), self.proximal_weight
        corrected = {}
        for name, g in gradients.items():
            g = g + gradient_offset[name] if gradient_offset else g
            corrected[name] = g + proximal_weight * (weights[name] - local.start[name]) if proximal_weight else g
        return corrected

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        """After the last step: (what to send up beside the weights, the client's new state)."""
        return {}, {}

    def rounded(self, auxiliary: Weights, step: int) -> Weights:
        """What goes up beside the weights, with counts of samples in it as multiples of ``step``."""
        return auxiliary

    def withhold(self, auxiliary: Weights, classes: Sequence[int]) -> Weights:
        """What came up beside the weights, without what it tells of classes that not all clients may hear of."""
        return auxiliary

    def server_state(self, weights: Weights) -> Weights:
        """What the server keeps from round to round, before the first."""
        return {}

    def auxiliary(self, state: Weights) -> Weights:
        """What goes down to every client beside the weights."""
        return {}

    def aggregate(
        self, weights: Weights, state: Weights, updates: Sequence[Update], clients: int
    ) -> tuple[Weights, Weights]:
        """The server step: the next global weights and server state.

        updates: this round's replies in client order. clients: how many clients there are in all (K).
        """
        return average((u.weights for u in updates), [u.examples for u in updates]), state
