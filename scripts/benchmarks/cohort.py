"""Local training of many linear heads, side by side against one after the other."""

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from app.algorithms.base import Local
from app.algorithms.fedavg import FedAvg
from app.training import cohort as batched
from app.training.plain import LocalResult, LocalSettings
from app.training.samples import TensorSet
from scripts.benchmarks.pair import Pair

CLIENTS, SAMPLES, DIMENSION, CLASSES, BATCH, EPOCHS = 100, 500, 512, 10, 64, 10
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-5


def cohort() -> list[Pair]:
    """A round of SGD with momentum over all clients against torch's own loop a client."""
    sets = clients()

    def ours() -> list[torch.Tensor]:
        settings = LocalSettings(EPOCHS, BATCH, "sgd", LR, MOMENTUM, DECAY)
        start = {"linear.weight": torch.zeros(CLASSES, DIMENSION), "linear.bias": torch.zeros(CLASSES)}
        size, trained = batched.chunk_size(CLIENTS), []
        for first in range(0, CLIENTS, size):
            chunk = range(first, min(first + size, CLIENTS))
            members = [batched.CohortClient(sets[k], Local(start), order(k)) for k in chunk]
            trained += batched.train(members, FedAvg(), settings)
        return [result.weights["linear.weight"] for result in trained if isinstance(result, LocalResult)]

    def agree(reference: Callable[[], list[torch.Tensor]], tolerance: float) -> None:
        mine, theirs = torch.stack(ours()), torch.stack(reference())
        assert torch.linalg.vector_norm(mine - theirs) <= tolerance * torch.linalg.vector_norm(theirs)

    what = f"{CLIENTS} clients x {SAMPLES} x {DIMENSION}, {CLASSES} classes, batch {BATCH}, {EPOCHS} epochs, momentum"

    def pair(against: str, reference: Callable[[list[TensorSet]], list[torch.Tensor]], tolerance: float) -> Pair:
        return Pair(
            f"{what}; against {against}; CPU seconds",
            lambda: ours,
            lambda: lambda: reference(sets),
            lambda: agree(lambda: reference(sets), tolerance),
            pairs=7,
            warm_up=1,
            clock=time.process_time,
        )

    return [
        pair("a loop that slices by index", by_index, 1e-5),
        pair("a loop over a DataLoader, whose order is another", by_loader, 0.2),
    ]


def clients() -> list[TensorSet]:
    """Every client's samples: classes that overlap a little."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, DIMENSION)) / 4
    sets = []
    for _ in range(CLIENTS):
        y = rng.integers(0, CLASSES, SAMPLES)
        sets.append(TensorSet((centres[y] + rng.standard_normal((SAMPLES, DIMENSION))).astype(np.float32), y))
    return sets


def order(client: int) -> torch.Generator:
    """What shuffles a client's samples."""
    return torch.Generator().manual_seed(client)


def head() -> tuple[torch.nn.Linear, torch.optim.SGD]:
    """A linear layer at zero and its optimiser."""
    layer = torch.nn.Linear(DIMENSION, CLASSES)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    return layer, torch.optim.SGD(layer.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


def by_index(sets: list[TensorSet]) -> list[torch.Tensor]:
    """The reference: client after client, batch after batch."""
    trained = []
    for client, data in enumerate(sets):
        layer, optimiser = head()
        generator, total = order(client), 0.0
        for _ in range(EPOCHS):
            permutation = torch.randperm(len(data), generator=generator)
            for start in range(0, len(data), BATCH):
                rows = permutation[start : start + BATCH]
                optimiser.zero_grad()
                loss = F.cross_entropy(layer(data.x[rows]), data.y[rows])
                loss.backward()
                optimiser.step()
                total += loss.item()
        trained.append(layer.weight.detach())
    return trained


def by_loader(sets: list[TensorSet]) -> list[torch.Tensor]:
    """The same through torch's DataLoader."""
    trained = []
    for client, data in enumerate(sets):
        layer, optimiser = head()
        loader = DataLoader(TensorDataset(data.x, data.y), batch_size=BATCH, shuffle=True, generator=order(client))
        total = 0.0
        for _ in range(EPOCHS):
            for x, y in loader:
                optimiser.zero_grad()
                loss = F.cross_entropy(layer(x), y)
                loss.backward()
                optimiser.step()
                total += loss.item()
        trained.append(layer.weight.detach())
    return trained
