"""The compiled steps of a linear head against the same steps in numpy, and what they refuse."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.training.compiled import Parameter, Step, descend


def parameter(rng: np.random.Generator, *shape: int, dtype: type = np.float64) -> Parameter:
    return Parameter(*(rng.standard_normal(shape).astype(dtype) for _ in range(4)))


def by_numpy(
    x: np.ndarray, labels: np.ndarray, order: np.ndarray, size: int, most: int, head: list[Parameter], step: Step
) -> tuple[int, float]:
    """The same in float64, one operator after the other; changes ``head`` likewise."""
    weight, bias = head
    done, losses = 0, 0.0
    for start in range(0, len(order), size):
        if done == most:
            break
        batch, y = x[order[start : start + size]], labels[start : start + size]
        scores = batch @ weight.value.T + bias.value
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        losses -= log_p[np.arange(len(y)), y].mean()
        slopes = (np.exp(log_p) - np.eye(len(bias.value))[y]) / len(y)
        for each, g in ((weight, slopes.T @ batch), (bias, slopes.sum(0))):
            towards = (
                g
                + each.gradient_offset
                + step.proximal_weight * (each.value - each.start)
                + step.weight_decay * each.value
            )
            each.velocity[:] = step.momentum * each.velocity + towards
            each.value[:] -= step.lr * each.velocity
        done += 1
    return done, losses


@given(
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 35),
    st.integers(0, 9),
    st.sampled_from([(np.float32, 1e-5), (np.float64, 1e-12)]),
)
def test_equals_the_steps_in_numpy(
    samples: int, p: int, classes: int, size: int, most: int, kind: tuple[type, float]
) -> None:
    dtype, tolerance = kind
    rng = np.random.default_rng([samples, p, classes, size])
    x, order = rng.standard_normal((samples, p)).astype(dtype), rng.permutation(samples)
    labels = rng.integers(0, classes, samples)
    ours = [parameter(rng, classes, p, dtype=dtype), parameter(rng, classes, dtype=dtype)]
    theirs = [Parameter(*(value.astype(np.float64) for value in each)) for each in ours]
    step = Step(lr=0.05, momentum=0.9, weight_decay=0.01, proximal_weight=0.3)
    done, losses = descend(x, labels, order, size, most, ours[0], ours[1], step)
    expected = by_numpy(x.astype(np.float64), labels, order, size, most, theirs, step)
    assert done == expected[0] == min(most, -(-samples // size))
    assert losses == pytest.approx(expected[1], rel=tolerance, abs=tolerance)
    for mine, reference in zip(ours, theirs, strict=True):
        for a, b in zip(mine, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=10 * tolerance)


def arguments(**other: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = {
        "x": rng.standard_normal((6, 5)),
        "labels": np.array([0, 1, 2, 0, 1, 2]),
        "order": np.arange(6),
        "batch_size": 4,
        "steps": 9,
        "weight": parameter(rng, 3, 5),
        "bias": parameter(rng, 3),
        "step": Step(0.1, 0.0, 0.0, 0.0),
    }
    return made | other


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"x": np.zeros((6, 4))}, ValueError, "do not fit"),
        ({"labels": np.array([0, 1])}, ValueError, "do not fit"),
        ({"batch_size": 0}, ValueError, "do not fit"),
        ({"bias": parameter(np.random.default_rng(0), 2)}, ValueError, "do not fit"),
        ({"weight": parameter(np.random.default_rng(0), 3, 5)._replace(start=np.zeros((2, 5)))}, ValueError, "do not"),
        (
            {"weight": parameter(np.random.default_rng(0), 3, 5)._replace(gradient_offset=np.zeros((1, 5)))},
            ValueError,
            "do not",
        ),
        ({"bias": parameter(np.random.default_rng(0), 3)._replace(velocity=np.zeros(2))}, ValueError, "do not fit"),
        ({"labels": np.array([0, 1, 2, 0, 1, 3])}, IndexError, "label outside"),
        ({"labels": np.array([0, -1, 2, 0, 1, 2])}, IndexError, "label outside"),
        ({"order": np.array([0, 1, 2, 3, 4, 6])}, IndexError, "not there"),
        ({"order": np.array([0, 1, 2, 3, 4, -1])}, IndexError, "not there"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        descend(**arguments(**wrong))


def test_samples_may_be_read_only() -> None:
    given = arguments()
    given["x"].flags.writeable = False
    assert descend(**given)[0] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_in_the_loss(value: float) -> None:
    given = arguments()
    given["x"][2, 1] = value
    assert not np.isfinite(descend(**given)[1])
