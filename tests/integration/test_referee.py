"""A second federation, in numpy alone, referees FedAvg, FedProx, SCAFFOLD and FedDyn.

It is written from the papers, in float64, and shares no code with app/. Its data are what a run used: the initial
weights, every client's samples, and the rows of every batch in the order in which they were drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from app.algorithms.registry import load
from app.augmentation.augmented_set import AugmentedSet
from app.models.base import Weights
from app.models.linear import Head
from app.training.plain import LocalSettings
from app.training.samples import TensorSet
from tests.running import run_in_process
from tests.small_federation import Federation

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
ROUNDS = 5
COEFFICIENTS = {
    "fedavg": {},
    "fedprox": {"mu": 0.3},
    "scaffold": {"server_lr": 0.7},
    "feddyn": {"alpha": 0.2},
}


@dataclass
class Client:
    """x (n, p), y (n,), and the rows of its epochs: one list of permutations for all rounds that it takes part in."""

    x: Array
    y: Rows
    epochs: list[Rows] = field(default_factory=list)
    memory: Array | None = None  # h_k of FedDyn, c_k of SCAFFOLD


@dataclass
class Referee:
    """Softmax regression W (C, p + 1), the last column for a constant 1, trained by momentum SGD at every client."""

    method: str
    coefficient: float
    clients: list[Client]
    W: Array
    lr: float
    momentum: float
    decay: float
    batch: int
    epochs: int
    server: Array | None = None  # h of FedDyn, c of SCAFFOLD

    def round(self, weights: list[float]) -> None:
        """One round of all clients. weights: what each counts in the mean of FedAvg and FedProx."""
        zero, K = np.zeros_like(self.W), len(self.clients)
        server = zero if self.server is None else self.server
        ends, changes = [], []
        for client in self.clients:
            memory = zero if client.memory is None else client.memory
            w, velocity, reach, speed = self.W.copy(), zero, 0.0, 0.0
            for _ in range(self.epochs):
                order = client.epochs.pop(0)
                for start in range(0, len(order), self.batch):
                    rows = order[start : start + self.batch]
                    g = self.gradient(w, client.x[rows], client.y[rows])
                    if self.method == "fedprox":
                        g = g + self.coefficient * (w - self.W)
                    elif self.method == "feddyn":
                        g = g - memory + self.coefficient * (w - self.W)
                    elif self.method == "scaffold":
                        g = g - memory + server
                    velocity = self.momentum * velocity + g + self.decay * w
                    w = w - self.lr * velocity
                    speed = self.momentum * speed + 1.0
                    reach += self.lr * speed  # how far a gradient of 1 would have gone
            if self.method == "feddyn":
                client.memory = memory - self.coefficient * (w - self.W)
            if self.method == "scaffold":
                client.memory = memory - server + (self.W - w) / reach
                changes.append(client.memory - memory)
            ends.append(w)
        if self.method == "feddyn":
            self.server = server - self.coefficient / K * sum(w - self.W for w in ends)
            self.W = sum(ends) / K - self.server / self.coefficient
        elif self.method == "scaffold":
            self.server = server + sum(changes) / K
            self.W = self.W + self.coefficient * sum(w - self.W for w in ends) / K
        else:
            self.W = sum(n * w for n, w in zip(weights, ends, strict=True)) / sum(weights)

    def gradient(self, w: Array, x: Array, y: Rows) -> Array:
        """Of the batch's mean cross-entropy."""
        inputs = np.hstack([x, np.ones((len(x), 1))])
        z = inputs @ w.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return p.T @ inputs / len(y)


def as_array(weights: Weights) -> Array:
    """The weights of a linear head as W (C, p + 1)."""
    return np.hstack([weights["linear.weight"].numpy(), weights["linear.bias"].numpy()[:, None]])


class Recorded(TensorSet):
    """Notes the rows of every epoch for the referee."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.x, client.y)
        self.client = client

    def picks(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, ...]]:
        for x, y, rows in super().picks(batch_size, generator):
            self.client.epochs.append(rows.numpy())
            yield x, y, rows


@pytest.mark.parametrize("method", COEFFICIENTS)
def test_local_loop_and_server_step_agree_in_float64(method: str) -> None:
    rng = np.random.default_rng(7)
    W = rng.normal(size=(4, 7))
    clients = []
    for n, held in ((23, (0, 1)), (9, (1, 2, 3)), (31, (0, 3)), (14, (2,))):
        y = rng.choice(held, n)
        clients.append(Client(rng.normal(size=(n, 6)) + 2 * np.eye(4, 6)[y], y))
    settings = LocalSettings(epochs=2, batch_size=5, optimiser="sgd", lr=0.2, momentum=0.9, weight_decay=1e-3)
    ours = Federation(
        load(f"app.algorithms.{method}:{NAMES[method]}", **COEFFICIENTS[method]),
        lambda: Head(6, 4).double(),
        [Recorded(client) for client in clients],  # type: ignore[misc]
        settings,
        {"linear.weight": torch.from_numpy(W[:, :-1].copy()), "linear.bias": torch.from_numpy(W[:, -1].copy())},
    )
    coefficient = next(iter(COEFFICIENTS[method].values()), 0.0)
    referee = Referee(method, coefficient, clients, W, lr=0.2, momentum=0.9, decay=1e-3, batch=5, epochs=2)
    for _ in range(ROUNDS):
        ours.round(range(len(clients)))
        referee.round([len(client.y) for client in clients])
        assert not any(client.epochs for client in clients)
        assert np.abs(as_array(ours.weights) - referee.W).max() < 1e-6
    assert np.abs(referee.W - W).max() > 0.1


NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "Scaffold", "feddyn": "FedDyn"}


@pytest.mark.parametrize("method", COEFFICIENTS)
def test_a_whole_run_agrees_to_its_own_precision(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through configuration, messages and strategy, which compute in float32."""
    found: dict[int, Client] = {}
    picks = AugmentedSet.picks

    def recording(
        self: AugmentedSet, batch_size: int, generator: torch.Generator, window: int = 2**30
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for x, y, rows in picks(self, batch_size, generator, window):
            client = found.setdefault(self._key[1], Client(x.double().numpy(), y.numpy()))
            client.epochs.append(rows.numpy().copy())
            yield x, y, rows

    monkeypatch.setattr(AugmentedSet, "picks", recording)
    training = {"lr": 0.4, "momentum": 0.9, "weight_decay": 1e-4, "batch_size": 16, "epochs": 2}
    coefficients = [f"method.{name}={value}" for name, value in COEFFICIENTS[method].items()]
    run_in_process(
        tmp_path / method,
        *("experiment=quickstart", "augmentation=none", f"method={method}", *coefficients),
        *(f"training.{name}={value}" for name, value in training.items()),
        *(f"federation.rounds={ROUNDS}", "federation.weights=real", "model.init=zeros"),
    )
    clients = [found[k] for k in sorted(found)]
    assert len(clients) == 10
    dimension, classes = clients[0].x.shape[1], 10
    referee = Referee(
        *(method, next(iter(COEFFICIENTS[method].values()), 0.0), clients, np.zeros((classes, dimension + 1))),
        lr=0.4,
        momentum=0.9,
        decay=1e-4,
        batch=16,
        epochs=2,
    )
    for _ in range(ROUNDS):
        referee.round([len(client.y) for client in clients])
    assert not any(client.epochs for client in clients)
    saved = load_file(tmp_path / method / "model-final.safetensors")
    ours = np.hstack([saved["linear.weight"], saved["linear.bias"][:, None]])
    assert np.abs(referee.W).max() > 0.1
    assert np.abs(ours - referee.W).max() < 1e-4 * np.abs(referee.W).max()
