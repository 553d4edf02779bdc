"""ProjAvg and RLAvg as server steps: the formulas, what they do beside Stiefel entries, and whole small federations."""

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.linalg
import torch

from app.algorithms import registry
from app.algorithms.base import Algorithm, Update
from app.algorithms.fedavg import FedAvg
from app.common.errors import FedgeoError
from app.geometry.stiefel import distance_to_stiefel, random_stiefel, retract
from app.models.base import Weights
from app.models.spdnet import SPDNet
from app.training.plain import LocalSettings
from tests.matrices import generator
from tests.small_federation import Federation, FixedOrder, distance

METHODS = ("projavg", "rlavg")


def method(name: str) -> Algorithm:
    return registry.load({"projavg": "app.algorithms.projavg:ProjAvg", "rlavg": "app.algorithms.rlavg:RLAvg"}[name])


def near(w: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    return retract(w, size * torch.randn(w.shape, dtype=w.dtype, generator=generator(seed)))


def weights(w: torch.Tensor, seed: int) -> Weights:
    linear = torch.randn(3, 4, dtype=torch.float64, generator=generator(seed))
    return {"stiefel.0": w, "linear.weight": linear}


def updates(start: torch.Tensor, sizes: Sequence[float], examples: Sequence[float]) -> list[Update]:
    return [
        Update(k, weights(near(start, size, seed=k), seed=10 + k), {}, n)
        for k, (size, n) in enumerate(zip(sizes, examples, strict=True))
    ]


def polar(a: np.ndarray) -> np.ndarray:
    return scipy.linalg.polar(a)[0]


@pytest.mark.parametrize("examples", [(1.0, 1.0, 1.0), (60.0, 20.0, 5.0)])
def test_server_steps_follow_the_papers_equations(examples: tuple[float, ...]) -> None:
    """(7) and (11), written out with scipy's polar factor; all other entries are the plain mean."""
    start = random_stiefel(7, 3, generator(1))
    replies = updates(start, (0.1, 0.3, 0.2), examples)
    share = np.array(examples) / sum(examples)
    mean = sum(s * u.weights["stiefel.0"].numpy() for s, u in zip(share, replies, strict=True))
    w = start.numpy()
    lifted = mean - w  # the mean of V - W; then the projection onto the tangent space at W
    tangent = lifted - 0.5 * w @ (w.T @ lifted + lifted.T @ w)
    linear = sum(s * u.weights["linear.weight"].numpy() for s, u in zip(share, replies, strict=True))
    for name, expected in (("projavg", polar(mean)), ("rlavg", polar(w + tangent))):
        new, state = method(name).aggregate(weights(start, 0), {}, replies, clients=3)
        assert np.allclose(new["stiefel.0"].numpy(), expected, rtol=0, atol=1e-13)
        assert np.allclose(new["linear.weight"].numpy(), linear, rtol=0, atol=1e-15)
        assert new.keys() == weights(start, 0).keys() and state == {}
        assert distance_to_stiefel(new["stiefel.0"]) < 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_all_say_the_same_are_right(name: str) -> None:
    w = near(random_stiefel(9, 4, generator(2)), 0.4, seed=3)
    replies = [Update(k, weights(w, 5), {}, 1.0) for k in range(4)]
    new, _ = method(name).aggregate(weights(w, 0), {}, replies, clients=4)
    assert torch.allclose(new["stiefel.0"], w, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_the_step_turns_with_the_channels(name: str) -> None:
    """Rotating all matrices from the left (another basis of the channels) rotates the result."""
    start, q = random_stiefel(6, 3, generator(1)), random_stiefel(6, 6, generator(8))
    replies = updates(start, (0.2, 0.4, 0.3), (1, 2, 3))
    turned = [Update(u.client, u.weights | {"stiefel.0": q @ u.weights["stiefel.0"]}, {}, u.examples) for u in replies]
    plain, _ = method(name).aggregate(weights(start, 0), {}, replies, clients=3)
    other, _ = method(name).aggregate(weights(q @ start, 0), {}, turned, clients=3)
    assert torch.allclose(other["stiefel.0"], q @ plain["stiefel.0"], rtol=0, atol=1e-12)


def test_rlavg_needs_the_previous_global_and_projavg_does_not() -> None:
    replies = updates(random_stiefel(6, 3, generator(1)), (0.3, 0.5, 0.4), (1, 1, 1))
    for name, moves in (("projavg", False), ("rlavg", True)):
        results = [
            method(name).aggregate(weights(random_stiefel(6, 3, generator(s)), 0), {}, replies, clients=3)[0]
            for s in (1, 4)
        ]
        assert (distance(*results) > 1e-3) is moves


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_cancel_out_are_refused_by_layer_name(name: str) -> None:
    w = random_stiefel(5, 2, generator(1))
    replies = [Update(0, weights(w, 1), {}, 1.0), Update(1, weights(-w, 2), {}, 1.0)]
    with pytest.raises(FedgeoError, match="stiefel.0: the clients' matrices cancel out"):
        method(name).aggregate(weights(w, 0), {}, replies, clients=2)


def covariances(seed: int, n: int = 24) -> FixedOrder:
    """Two classes that differ in the power of one direction."""
    x = torch.randn(n, 6, 40, dtype=torch.float64, generator=generator(seed))
    y = torch.arange(n) % 2
    x[y == 1, 0] *= 2
    return FixedOrder(x @ x.mT / 40, y)


def federation(algorithm: Algorithm, *, clients: int = 4) -> Federation:
    def model() -> SPDNet:
        return SPDNet(6, [4], 2, 1e-2, stiefel=algorithm.keeps_manifold)

    first = model()
    first.reset(generator(5))
    settings = LocalSettings(epochs=3, batch_size=8, optimiser="adam", lr=0.02, momentum=0.0, weight_decay=0.0)
    return Federation(algorithm, model, [covariances(k) for k in range(clients)], settings, first.export())


@pytest.mark.parametrize("name", METHODS)
def test_a_federation_stays_on_the_manifold_and_learns(name: str) -> None:
    run = federation(method(name))
    history = run.run([range(4)] * 6)
    assert max(distance_to_stiefel(w["stiefel.0"]) for w in history) < 1e-12
    model = run.model()
    model.load(run.weights)
    accuracy = np.mean([(model(c.x).logits.argmax(1) == c.y).double().mean() for c in run.clients])
    assert accuracy > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_with_half_of_the_clients_each_round_starts_at_the_last_ones_result(name: str) -> None:
    """Nothing else is carried over: a federation that begins with these weights gives the same round."""
    run = federation(method(name))
    for participants in ([0, 2], [1, 3], [0, 1]):
        before = run.weights
        run.round(participants)
        again = federation(method(name))
        again.weights = before
        again.round(participants)
        assert distance(run.weights, again.weights) == 0
        assert distance_to_stiefel(run.weights["stiefel.0"]) < 1e-12


def test_without_projection_the_matrices_are_free_and_leave_the_manifold() -> None:
    run = federation(FedAvg())
    run.run([range(4)] * 3)
    assert set(run.weights) == {"bimap.0.matrix", "linear.weight", "linear.bias"}
    assert distance_to_stiefel(run.weights["bimap.0.matrix"]) > 1e-3


def test_both_averages_agree_while_clients_are_close() -> None:
    """The paper finds their curves on top of each other: they differ to higher order in the clients' distance."""
    start = random_stiefel(7, 3, generator(1))
    apart = []
    for size in (0.1, 0.01):
        replies = updates(start, (size, size, size), (1, 1, 1))
        ends = [method(name).aggregate(weights(start, 0), {}, replies, clients=3)[0] for name in METHODS]
        apart.append(distance(*ends))
    assert 0 < apart[1] < apart[0] / 50
