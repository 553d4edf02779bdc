"""Each base method against an independent numpy account of it: softmax regression, gradients written by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load as read
from safetensors.torch import save

from app.algorithms.base import Algorithm
from app.algorithms.fedavg import FedAvg
from app.algorithms.fedavgm import FedAvgM
from app.algorithms.feddyn import FedDyn
from app.algorithms.fedntd import FedNTD
from app.algorithms.fedopt import FedOpt
from app.algorithms.fedproto import FedProto
from app.algorithms.fedprox import FedProx
from app.algorithms.moon import Moon
from app.algorithms.scaffold import Scaffold
from app.models.base import Weights
from app.models.linear import Head
from app.training.plain import LocalSettings
from tests.small_federation import Federation, FixedOrder, distance

Array = NDArray[np.float64]
DIMENSION, CLASSES, CLIENTS = 4, 4, 4
SETTINGS = LocalSettings(epochs=2, batch_size=4, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
# clients come and go, and client 3 is first seen late
PLAN = [[0, 1], [1, 2], [0, 3], [0, 1, 2, 3], [2, 1], [0, 2, 3]]


def client_arrays() -> list[tuple[Array, NDArray[np.int64]]]:
    """Unequal sizes and skewed labels; class 3 is held by client 3 alone."""
    rng = np.random.default_rng(0)
    held = [[0, 1], [1, 2], [0, 1, 2], [2, 3]]
    arrays = []
    for classes, n in zip(held, (9, 6, 13, 8), strict=True):
        y = rng.choice(classes, n)
        arrays.append((rng.normal(size=(n, DIMENSION)) + np.eye(CLASSES, DIMENSION)[y], y))
    return arrays


START = np.random.default_rng(1).normal(size=(CLASSES, DIMENSION + 1))  # the last column is the bias


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@dataclass
class Reference:
    """FedAvg on theta (C, p + 1), samples with a 1 appended; the methods change the lines they are about."""

    kept: dict[int, Array] = field(default_factory=dict)  # what a client keeps
    theta: Array = field(default_factory=lambda: START)  # the global weights
    c: Array = field(default_factory=lambda: np.zeros_like(START))  # what the server keeps
    weighted: bool = True

    def slope(self, z: Array, x: Array, y: NDArray[np.int64], k: int) -> Array | float:
        """The gradient of the added loss by the logits z."""
        return 0.0

    def proximal_weight(self, theta: Array, k: int) -> Array | float:
        """What is added to the gradient by theta."""
        return 0.0

    def after(self, theta: Array, steps: int, k: int) -> None:
        """The client's end of a round."""

    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        return mean

    def round(self, participants: list[int]) -> Array:
        data = client_arrays()
        thetas = []
        for k in participants:
            x, y = np.c_[data[k][0], np.ones(len(data[k][1]))], data[k][1]
            theta, velocity, steps = self.theta, np.zeros_like(START), 0
            for _ in range(SETTINGS.epochs):
                for i in range(0, len(y), SETTINGS.batch_size):
                    xb, yb = x[i : i + SETTINGS.batch_size], y[i : i + SETTINGS.batch_size]
                    z = xb @ theta.T
                    dz = softmax(z) - np.eye(CLASSES)[yb] + self.slope(z, xb, yb, k)
                    gradient = dz.T @ xb / len(yb) + self.proximal_weight(theta, k) + SETTINGS.weight_decay * theta
                    velocity = SETTINGS.momentum * velocity + gradient
                    theta = theta - SETTINGS.lr * velocity
                    steps += 1
            self.after(theta, steps, k)
            thetas.append(theta)
        sizes = [len(data[k][1]) if self.weighted else 1 for k in participants]
        self.theta = self.server(thetas, np.average(thetas, axis=0, weights=sizes), participants)
        return self.theta


class ProxReference(Reference):
    def proximal_weight(self, theta: Array, k: int) -> Array:
        return 0.7 * (theta - self.theta)


class AvgMReference(Reference):
    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        self.c = 0.6 * self.c + self.theta - mean
        return self.theta - 0.8 * self.c


@dataclass
class OptReference(Reference):
    optimiser: str = "sgd"
    v: Array = field(default_factory=lambda: np.full_like(START, 0.01**2))

    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        d = mean - self.theta
        if self.optimiser == "sgd":
            self.c = 0.9 * self.c + d
            return self.theta + 0.5 * self.c
        self.c = 0.7 * self.c + 0.3 * d
        self.v = {
            "adagrad": self.v + d**2,
            "yogi": self.v - 0.05 * d**2 * np.sign(self.v - d**2),
            "adam": 0.95 * self.v + 0.05 * d**2,
        }[self.optimiser]
        return self.theta + 0.1 * self.c / (np.sqrt(self.v) + 0.01)


class ScaffoldReference(Reference):
    def proximal_weight(self, theta: Array, k: int) -> Array:
        return self.c - self.kept.get(k, np.zeros_like(START))

    def after(self, theta: Array, steps: int, k: int) -> None:
        velocity, length = 0.0, 0.0  # how far a constant unit gradient goes
        for _ in range(steps):
            velocity = SETTINGS.momentum * velocity + 1
            length += SETTINGS.lr * velocity
        self.kept[-1 - k] = self.kept.get(k, np.zeros_like(START))  # the one before, for the server
        self.kept[k] = self.kept[-1 - k] - self.c + (self.theta - theta) / length

    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        self.c = self.c + sum(self.kept[k] - self.kept[-1 - k] for k in participants) / CLIENTS
        return self.theta + 0.25 * sum(t - self.theta for t in thetas) / len(thetas)


class DynReference(Reference):
    def proximal_weight(self, theta: Array, k: int) -> Array:
        return -self.kept.get(k, np.zeros_like(START)) + 0.5 * (theta - self.theta)

    def after(self, theta: Array, steps: int, k: int) -> None:
        self.kept[k] = self.kept.get(k, np.zeros_like(START)) - 0.5 * (theta - self.theta)

    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        self.c = self.c - 0.5 / CLIENTS * sum(t - self.theta for t in thetas)
        return sum(thetas) / len(thetas) - self.c / 0.5


class MoonReference(Reference):
    def slope(self, z: Array, x: Array, y: NDArray[np.int64], k: int) -> Array:
        def cosine(v: Array) -> tuple[Array, Array]:
            a, b = np.linalg.norm(z, axis=-1, keepdims=True), np.linalg.norm(v, axis=-1, keepdims=True)
            s = (z * v).sum(-1, keepdims=True) / (a * b)
            return s, v / (a * b) - s * z / a**2

        s_glob, d_glob = cosine(x @ self.theta.T)
        s_prev, d_prev = cosine(x @ self.kept.get(k, self.theta).T)
        p = 1 / (1 + np.exp((s_prev - s_glob) / 0.5))
        return 1.5 * (1 - p) / 0.5 * (d_prev - d_glob)

    def after(self, theta: Array, steps: int, k: int) -> None:
        self.kept[k] = theta


class ProtoReference(Reference):
    """kept: by class, the prototype."""

    def slope(self, z: Array, x: Array, y: NDArray[np.int64], k: int) -> Array:
        return np.stack([2 * 2 / CLASSES * (row - self.kept.get(int(i), row)) for row, i in zip(z, y, strict=True)])

    def server(self, thetas: list[Array], mean: Array, participants: list[int]) -> Array:
        data = client_arrays()
        found: dict[int, list[Array]] = {}
        for theta, k in zip(thetas, participants, strict=True):
            for row, i in zip(*data[k], strict=True):
                found.setdefault(int(i), []).append(theta @ np.append(row, 1))
        self.kept |= {i: np.mean(rows, axis=0) for i, rows in found.items()}
        return mean


class NTDReference(Reference):
    def slope(self, z: Array, x: Array, y: NDArray[np.int64], k: int) -> Array:
        rows = np.zeros_like(z)
        for b, i in enumerate(y):
            others = [j for j in range(CLASSES) if j != i]
            p = softmax(z[b, others] / 1.3)
            q = softmax((self.theta @ x[b])[others] / 1.3)
            rows[b, others] = 0.8 * 1.3 * (p - q)
        return rows


METHODS: dict[str, tuple[Algorithm, Callable[[], Reference]]] = {
    "fedavg": (FedAvg(), Reference),
    "fedprox": (FedProx(mu=0.7), ProxReference),
    "fedavgm": (FedAvgM(beta=0.6, server_lr=0.8), AvgMReference),
    "fedopt-sgd": (FedOpt(), OptReference),
    "scaffold": (Scaffold(), ScaffoldReference),
    "moon": (Moon(mu=1.5), MoonReference),
    "feddyn": (FedDyn(), DynReference),
    "fedproto": (FedProto(), ProtoReference),
    "fedntd": (FedNTD(beta=0.8, tau=1.3), NTDReference),
}
for _name in ("adam", "yogi", "adagrad"):
    _adaptive: dict[str, Any] = {"server_lr": 0.1, "beta_1": 0.7, "beta_2": 0.95, "tau": 0.01}
    METHODS[f"fedopt-{_name}"] = (
        FedOpt(optimiser=_name, **_adaptive),  # type: ignore[arg-type]
        lambda name=_name: OptReference(optimiser=name),  # type: ignore[misc]
    )


def as_weights(theta: Array) -> Weights:
    return {
        "linear.weight": torch.from_numpy(theta[:, :-1].copy()),
        "linear.bias": torch.from_numpy(theta[:, -1].copy()),
    }


def federation(algorithm: Algorithm, forget: Literal["", "client", "server"] = "") -> Federation:
    clients = [FixedOrder(torch.from_numpy(x), torch.from_numpy(y)) for x, y in client_arrays()]
    return Federation(
        algorithm, lambda: Head(DIMENSION, CLASSES).double(), clients, SETTINGS, as_weights(START), forget=forget
    )


def reference(name: str) -> list[Weights]:
    peer = METHODS[name][1]()
    return [as_weights(peer.round(participants)) for participants in PLAN]


@pytest.mark.parametrize("name", METHODS)
def test_equals_the_numpy_reference_in_every_round(name: str) -> None:
    history = federation(METHODS[name][0]).run(PLAN)
    for ours, theirs in zip(history, reference(name), strict=True):
        assert distance(ours, theirs) < 1e-10


@pytest.mark.parametrize(
    ("name", "forget"),
    [
        ("fedavgm", "server"),
        ("fedopt-sgd", "server"),
        ("fedopt-adam", "server"),
        ("fedopt-yogi", "server"),
        ("fedopt-adagrad", "server"),
        ("scaffold", "client"),
        ("scaffold", "server"),
        ("feddyn", "client"),
        ("feddyn", "server"),
        ("moon", "client"),
        ("fedproto", "server"),
    ],
)
def test_a_state_that_stays_as_it_began_misses_the_reference(name: str, forget: Literal["client", "server"]) -> None:
    forgetful = federation(METHODS[name][0], forget).run(PLAN)
    assert distance(forgetful[-1], reference(name)[-1]) > 1e-3


HOOKS = [
    (name, hook)
    for name, (algorithm, _) in METHODS.items()
    for hook in ("loss", "gradient_offset", "proximal_weight", "correct", "aggregate")
    if getattr(type(algorithm), hook) is not getattr(Algorithm, hook)
]


@pytest.mark.parametrize(("name", "hook"), HOOKS)
def test_without_its_own_term_it_misses_the_reference(name: str, hook: str) -> None:
    algorithm = METHODS[name][0]
    plain = type("Plain", (type(algorithm),), {hook: getattr(Algorithm, hook)})
    without = federation(plain(**vars(algorithm))).run(PLAN)
    assert distance(without[-1], reference(name)[-1]) > 1e-3


def test_every_method_has_a_term_to_drop() -> None:
    assert {name for name, _ in HOOKS} == METHODS.keys() - {"fedavg"}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_resumed_from_saved_states_goes_on_to_the_bit(name: str) -> None:
    whole = federation(METHODS[name][0])
    whole.run(PLAN)
    first = federation(METHODS[name][0])
    first.run(PLAN[:3])
    second = federation(METHODS[name][0])
    second.weights, second.server = read(save(first.weights)), read(save(first.server))
    second.states = {k: read(save(state)) for k, state in first.states.items()}
    second.run(PLAN[3:])
    assert all(torch.equal(second.weights[name], w) for name, w in whole.weights.items())
