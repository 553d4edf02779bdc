"""A federation small enough to read: what the tests of the base methods run, with the real local loop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from app.algorithms.base import Algorithm, Local, Update
from app.models.base import Model, Weights
from app.training.plain import LocalSettings, train


@dataclass(frozen=True)
class FixedOrder:
    """A client's data, always in the same order."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        return self.in_order(batch_size)

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(batch_size), self.y.split(batch_size), strict=True)


@dataclass
class Federation:
    """A server and its clients. forget: whose state is thrown away after every round."""

    algorithm: Algorithm
    model: Callable[[], Model]
    clients: Sequence[FixedOrder]
    settings: LocalSettings
    weights: Weights
    forget: Literal["", "client", "server"] = ""
    equal: bool = False  # replies weigh the same instead of by their samples
    total: int | None = None  # how many clients the server believes there are
    server: Weights = field(default_factory=dict)
    states: dict[int, Weights] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = self.algorithm.server_state(self.weights)

    def round(self, participants: Sequence[int]) -> None:
        auxiliary = self.algorithm.auxiliary(self.server)
        updates = []
        for k in participants:
            local = Local(self.weights, auxiliary, self.states.get(k, {}))
            result = train(
                self.model(), self.clients[k], self.algorithm, local, self.settings, torch.Generator().manual_seed(k)
            )
            if self.forget != "client":
                self.states[k] = result.state
            updates.append(Update(k, result.weights, result.auxiliary, 1.0 if self.equal else len(self.clients[k])))
        state = self.algorithm.server_state(self.weights) if self.forget == "server" else self.server
        total = self.total or len(self.clients)
        self.weights, self.server = self.algorithm.aggregate(self.weights, state, updates, total)

    def run(self, plan: Sequence[Sequence[int]]) -> list[Weights]:
        """The global weights after each round of ``plan``, the participants of each."""
        history = []
        for participants in plan:
            self.round(participants)
            history.append(self.weights)
        return history


def distance(a: Weights, b: Weights) -> float:
    """The largest absolute difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
