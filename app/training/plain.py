"""The local loop of one client, written to be read: it is the reference for every faster way to compute it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..algorithms.base import Algorithm, Local, Trained
from ..common.errors import FedgeoError
from ..models.base import Model, Output, Weights


class Data(Protocol):
    """A client's training set."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in random order: (x, y) with at most ``batch_size`` rows."""
        ...

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One unshuffled pass."""
        ...


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains: U local epochs, or exactly ``steps`` gradient steps where that is given."""

    epochs: int
    batch_size: int
    optimiser: Literal["sgd", "adam"]
    lr: float
    momentum: float
    weight_decay: float
    steps: int | None = None


@dataclass(frozen=True)
class LocalResult:
    """weights: w_k. extra: what the method sends up. state: what the client keeps. loss: mean over the steps.

    moments: the optimiser's state at the end, '<parameter>/<name>', for whoever wants to go on with it.
    """

    weights: Weights
    auxiliary: Weights
    state: Weights
    loss: float
    steps: int
    moments: Weights


def optimiser(parameters: Weights, settings: LocalSettings) -> torch.optim.Optimizer:
    """The optimiser over ``parameters``; weight decay leaves out entries that live on a manifold."""
    curved = {name for name in parameters if name.endswith(".tangent")}
    groups = [
        {"params": [p for n, p in parameters.items() if n not in curved], "weight_decay": settings.weight_decay},
        {"params": [p for n, p in parameters.items() if n in curved], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if settings.optimiser == "adam":
        return torch.optim.Adam(groups, lr=settings.lr)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


def train(
    model: Model,
    data: Data,
    algorithm: Algorithm,
    local: Local,
    settings: LocalSettings,
    generator: torch.Generator,
    moments: Weights | None = None,
) -> LocalResult:
    """Train ``model`` on ``data`` from ``local.start`` and return what the client sends and keeps.

    ``moments`` are an earlier result's, to go on with; without them the optimiser starts afresh, as in the papers.
    ``local.state`` empty means a first participation: the algorithm says what a client then has.

    Raises FloatingPointError where the loss stops being finite, before anything is sent, and FedgeoError for a
    client without samples.
    """
    if len(data) == 0:
        raise FedgeoError("a client has no training samples: leave it out of the training rounds")
    if not local.state:
        local = replace(local, state=algorithm.client_state(local.start))
    model.load(local.start)
    model.generator = generator
    weights: Weights = dict(model.named_parameters())

    def forward(values: Weights, x: Tensor) -> Output:  # any weights through this architecture
        model.train(torch.is_grad_enabled())  # a reference model only answers: no dropout, no new batch statistics
        return torch.func.functional_call(model, values, (x,))

    step = optimiser(weights, settings)
    restore_moments(step, weights, moments or {})
    losses: list[Tensor] = []
    for x, y in schedule(data, settings, generator):
        loss = algorithm.loss(forward, weights, x, y, local).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            corrected = algorithm.correct(dict(zip(weights, gradients, strict=True)), weights, local)
        for name, p in weights.items():
            p.grad = corrected[name]
        step.step()
        losses.append(loss.detach())
    mean_loss = float(torch.stack(losses).mean())
    if not torch.isfinite(torch.tensor(mean_loss)):
        raise FloatingPointError("the local loss is not finite: lower training.lr, or look for outliers in the data")
    trained = Trained(
        weights=model.export(),
        steps=len(losses),
        lr=settings.lr,
        momentum=settings.momentum if settings.optimiser == "sgd" else 0.0,
        forward=forward,
        data=lambda: data.in_order(settings.batch_size),
    )
    with torch.no_grad():
        auxiliary, state = algorithm.finish(trained, local)
    return LocalResult(trained.weights, auxiliary, state, mean_loss, len(losses), moments_of(step, weights))


def moments_of(step: torch.optim.Optimizer, weights: Weights) -> Weights:
    """The optimiser's state tensors as '<parameter>/<name>'."""
    return {
        f"{name}/{key}": value.detach().clone()
        for name, p in weights.items()
        for key, value in step.state[p].items()
        if isinstance(value, Tensor)
    }


def restore_moments(step: torch.optim.Optimizer, weights: Weights, moments: Weights) -> None:
    """Give the optimiser the state that ``moments_of`` took. SPDnet's is that of its tangent parameters."""
    for key, value in moments.items():
        name, _, entry = key.rpartition("/")
        step.state[weights[name]][entry] = value.clone()


@torch.no_grad()
def predict(model: Model, x: np.ndarray, batch_size: int = 1024) -> np.ndarray:
    """The model's logits, (n, C), in evaluation mode. x: (n, ...) in the model's own dtype."""
    model.eval()
    return torch.cat([model(part).logits for part in torch.from_numpy(x).split(batch_size)]).numpy()


def schedule(data: Data, settings: LocalSettings, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all epochs; with ``settings.steps``, epochs are repeated until that many were taken."""
    taken = 0
    epoch = 0
    while settings.steps is not None or epoch < settings.epochs:
        for batch in data.batches(settings.batch_size, generator):
            if taken == settings.steps:
                return
            taken += 1
            yield batch
        epoch += 1
