"""Centred clipping and the geometric median of updates, against numpy and by laws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.algorithms.base import Algorithm, Update
from app.algorithms.centred_clipping import CentredClipping
from app.algorithms.fedavg import FedAvg
from app.algorithms.geometric_median import GeometricMedian
from app.geometry.robust import geometric_median
from app.models.base import Weights


def weights(seed: int, scale: float = 1.0) -> Weights:
    rng = np.random.default_rng(seed)
    return {"w": torch.from_numpy(scale * rng.standard_normal((2, 3))), "b": torch.from_numpy(scale * rng.random(2))}


def vector(tree: Weights) -> np.ndarray:
    return np.concatenate([tree["w"].numpy().ravel(), tree["b"].numpy().ravel()])


def turned(tree: Weights) -> Weights:
    """The same tensors in another order, as a client may send them."""
    return {"b": tree["b"], "w": tree["w"]}


START = weights(0)
OWN = [weights(k) for k in (1, 2, 3, 4, 5)]
UPDATES = [Update(k, turned(own), {}, 1.0 + 1000 * k) for k, own in enumerate(OWN)]


def clipped(step: np.ndarray, radius: float | None, iterations: int) -> np.ndarray:
    """The paper's iteration, a client at a time."""
    changes = [vector(own) - vector(START) for own in OWN]
    for _ in range(iterations):
        norms = [float(np.linalg.norm(x - step)) for x in changes]
        tau = float(np.median(norms)) if radius is None else radius
        step = step + sum((x - step) * min(1.0, tau / n) for x, n in zip(changes, norms, strict=True)) / len(changes)
    return step


@pytest.mark.parametrize(("radius", "iterations"), [(None, 1), (None, 3), (0.7, 2), (1e9, 1)])
def test_centred_clipping_equals_the_paper_in_two_rounds(radius: float | None, iterations: int) -> None:
    method = CentredClipping(radius, iterations)
    state = method.server_state(START)
    new, state = method.aggregate(START, state, UPDATES, 5)
    step = clipped(np.zeros(8), radius, iterations)
    np.testing.assert_allclose(vector(new), vector(START) + step, atol=1e-12)
    again, _ = method.aggregate(START, state, UPDATES, 5)
    np.testing.assert_allclose(vector(again), vector(START) + clipped(step, radius, iterations), atol=1e-12)


def test_a_radius_above_all_distances_is_fedavg_with_equal_weights() -> None:
    wide = CentredClipping(1e9, 1)
    equal = [Update(u.client, u.weights, {}, 1.0) for u in UPDATES]
    expected, _ = FedAvg().aggregate(START, {}, equal, 5)
    found, _ = wide.aggregate(START, wide.server_state(START), UPDATES, 5)
    np.testing.assert_allclose(vector(found), vector(expected), atol=1e-12)


def test_the_geometric_median_is_that_of_all_weights_together() -> None:
    found, _ = GeometricMedian().aggregate(START, {}, UPDATES, 5)
    expected = geometric_median(np.stack([vector(own) for own in OWN]), np.ones(5))
    np.testing.assert_allclose(vector(found), expected, atol=1e-12)


@pytest.mark.parametrize("method", [CentredClipping(), GeometricMedian()], ids=lambda m: type(m).__name__)
@given(size=st.floats(1, 1e9))
def test_two_of_five_cannot_carry_the_weights_away(method: Algorithm, size: float) -> None:
    lying = [Update(k, weights(9, size), {}, 1e9) if k in (1, 3) else u for k, u in enumerate(UPDATES)]
    found, _ = method.aggregate(START, method.server_state(START), lying, 5)
    honest = np.stack([vector(OWN[k]) for k in (0, 2, 4)])
    spread, far = (np.linalg.norm(honest - at, axis=1).max() for at in (honest.mean(axis=0), vector(START)))
    assert np.linalg.norm(vector(found) - honest.mean(axis=0)) < 6 * (spread + far)


@pytest.mark.parametrize("method", [CentredClipping(), GeometricMedian()], ids=lambda m: type(m).__name__)
def test_clients_that_agree_are_followed_and_types_are_kept(method: Algorithm) -> None:
    start = {name: value.float() for name, value in START.items()}
    same = [Update(k, turned({n: v.float() for n, v in OWN[0].items()}), {}, 1.0) for k in range(4)]
    found, _ = method.aggregate(start, method.server_state(start), same, 4)
    assert {name: (v.dtype, v.shape) for name, v in found.items()} == {n: (v.dtype, v.shape) for n, v in start.items()}
    np.testing.assert_allclose(vector(found), vector(same[0].weights), atol=1e-6)
