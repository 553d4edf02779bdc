"""The compiled steps of a linear head against the same steps in numpy, and what they refuse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.training.compiled import Parameter, Step, descend
from tests.conftest import ROOT


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


SCRIPT = """
import numpy as np
from app.training.compiled import Parameter, Step, descend
zeros = lambda *shape: Parameter(*(np.zeros(shape) for _ in range(4)))
step = Step(0.1, 0.0, 0.0, 0.0)
print(*descend(np.ones((2, 3)), np.array([0, 1]), np.arange(2), 2, 1, zeros(2, 3), zeros(2), step))
"""


def run_script(home: Path, root: Path = ROOT, **more: str) -> dict[str, tuple[int, bytes]]:
    """What a new process of this user leaves of compiled code, and when; its steps must be right."""
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(root), **more}
    if not more:
        env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=env, capture_output=True, text=True, check=True)
    count, loss = done.stdout.split()
    assert (int(count), float(loss)) == (1, pytest.approx(np.log(2)))
    kept = home / ".cache" / "fedgeo" / "compiled"
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept.glob("*")}


def test_it_is_compiled_once_for_all_copies_of_the_source(tmp_path: Path) -> None:
    first = run_script(tmp_path)
    assert len(first) == 1
    shutil.copytree(ROOT / "app", tmp_path / "copy" / "app", ignore=shutil.ignore_patterns("__pycache__"))
    assert run_script(tmp_path, tmp_path / "copy") == first
    source = tmp_path / "copy" / "app" / "training" / "compiled.py"
    source.write_text(source.read_text() + "\n")
    assert len(run_script(tmp_path, tmp_path / "copy")) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "a lost page"])
def test_damaged_code_is_compiled_again(tmp_path: Path, damage: str) -> None:
    ((name, (_, good)),) = run_script(tmp_path).items()
    page = slice(2 * 4096, 3 * 4096)  # of what the code calls: run, it ends the process
    lost = bytearray(good)
    lost[page] = bytes(4096)
    bad = {"cut": good[:5000], "empty": b"", "a lost page": bytes(lost)}[damage]
    (tmp_path / ".cache" / "fedgeo" / "compiled" / name).write_bytes(bad)
    mended = run_script(tmp_path)
    assert mended.keys() == {name} and mended[name][1] != bad
    assert run_script(tmp_path) == mended


def test_where_nothing_can_be_written_it_is_compiled_again(tmp_path: Path) -> None:
    assert not run_script(Path("/proc/nowhere"))
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "fedgeo").touch()
    assert not run_script(tmp_path)


@pytest.mark.parametrize("switch", [{"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_CACHE_DIR": "elsewhere"}])
def test_settings_of_numba_hold(tmp_path: Path, switch: dict[str, str]) -> None:
    switch = {key: str(tmp_path / value) if value == "elsewhere" else value for key, value in switch.items()}
    assert not run_script(tmp_path, **switch)
    assert (tmp_path / "elsewhere").is_dir() == ("NUMBA_CACHE_DIR" in switch)
