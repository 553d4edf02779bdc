"""The common parts of the base methods, and finding a method by name."""

import importlib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.algorithms.base import Algorithm, Local, NonNegative, Update, average, cross_entropy
from app.algorithms.fedavg import FedAvg
from app.algorithms.fedopt import FedOpt
from app.algorithms.fedprox import FedProx
from app.algorithms.registry import load
from app.common.errors import FedgeoError
from app.models.base import Weights
from tests.conftest import ROOT

METHODS = ROOT / "conf" / "method"


def trees(values: np.ndarray, dtype: torch.dtype = torch.float64) -> list[Weights]:
    return [{"a": torch.tensor(v, dtype=dtype), "b": torch.tensor([v, 2 * v], dtype=dtype)} for v in values]


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 1e3)), min_size=1, max_size=8))
def test_average_is_numpys_and_keeps_names(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    mean = average(trees(values), list(weights))
    expected = np.average(values, weights=weights)
    assert mean["a"].item() == pytest.approx(expected, rel=1e-12, abs=1e-9)
    assert mean["b"].tolist() == pytest.approx([expected, 2 * expected], rel=1e-12, abs=1e-9)


def test_average_sums_in_float64_and_returns_the_trees_dtype() -> None:
    # in float32 each 1 would vanish beside 2^25
    mean = average(trees(np.array([2.0**25, 1.0, 1.0, 1.0, 1.0, -(2.0**25)]), torch.float32), [1.0] * 6)
    assert mean["a"].dtype == torch.float32
    assert mean["a"].item() == pytest.approx(4 / 6)


def test_average_leaves_its_input_alone() -> None:
    given_trees = trees(np.array([1.0, 3.0]))
    average(given_trees, [1.0, 1.0])
    assert [t["a"].item() for t in given_trees] == [1.0, 3.0]


def test_cross_entropy_is_minus_the_log_of_the_softmax_for_any_leading_dimensions() -> None:
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(2, 3, 5, 4, generator=g), torch.randint(0, 4, (2, 3, 5), generator=g)
    z = logits.double().numpy()
    expected = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, y.numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(cross_entropy(logits, y).numpy(), expected, rtol=1e-5)


def test_fedavg_weighs_by_examples() -> None:
    updates = [Update(k, t, {}, n) for k, t, n in zip((0, 1), trees(np.array([1.0, 4.0])), (1, 2), strict=True)]
    new, state = FedAvg().aggregate(trees(np.array([0.0]))[0], {}, updates, 2)
    assert new["a"].item() == pytest.approx(3.0)
    assert state == {}


# --- by name --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedSteps(Algorithm):
    """A method from outside: it steps along the gradients' signs, ``scale`` long."""

    scale: NonNegative

    def correct(self, gradients: Weights, weights: Weights, local: Local) -> Weights:
        return {name: self.scale * g.sign() for name, g in gradients.items()}


OUTSIDE = f"{__name__}:SignedSteps"


def test_a_method_from_outside_is_loaded_by_its_name() -> None:
    method = load(OUTSIDE, scale=2)
    assert method == SignedSteps(2.0)
    assert method.correct({"a": torch.tensor([-3.0, 5.0])}, {}, Local({}))["a"].tolist() == [-2.0, 2.0]


def test_the_given_values_replace_the_defaults() -> None:
    assert load("app.algorithms.fedprox:FedProx") == FedProx()
    assert load("app.algorithms.fedopt:FedOpt", optimiser="yogi", tau=0.1) == FedOpt("yogi", tau=0.1)


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        ("app.algorithms.fedprox:FedProx", {"mu": -1.0}, "method.mu=-1.0: must be greater than or equal to 0"),
        ("app.algorithms.fedprox:FedProx", {"mu": "0.1"}, "method.mu=0.1: must be a valid number"),
        ("app.algorithms.fedprox:FedProx", {"mu": float("nan")}, "method.mu=nan: must be a finite number"),
        ("app.algorithms.fedprox:FedProx", {"mue": 1}, "method.mue: FedProx has no such parameter; it has mu"),
        ("app.algorithms.fedavg:FedAvg", {"mu": 1}, "method.mu: FedAvg has no such parameter; it has none"),
        ("app.algorithms.fedavgm:FedAvgM", {"beta": 1.0}, "method.beta=1.0: must be less than 1"),
        ("app.algorithms.fedopt:FedOpt", {"optimiser": "adamw"}, "method.optimiser=adamw: must be 'sgd', 'adam'"),
        ("app.algorithms.feddyn:FedDyn", {"alpha": 0.0}, "method.alpha=0.0: must be above 0"),
        ("app.algorithms.moon:Moon", {"tau": 0}, "method.tau=0: must be greater than 0"),
        (OUTSIDE, {}, "method.scale: SignedSteps needs a value for it"),
        ("app.algorithms.fedprox:Fedprox", {}, "method.target=app.algorithms.fedprox:Fedprox: must be 'module:Class'"),
        ("app.algorithms.nowhere:A", {}, "method.target=app.algorithms.nowhere:A: must be 'module:Class'"),
        ("FedProx", {}, "method.target=FedProx: must be 'module:Class'"),
        (":FedProx", {}, "method.target=:FedProx: must be 'module:Class'"),
        ("app.models.linear:Head", {}, "method.target=app.models.linear:Head: must be a subclass"),
        ("app.algorithms.base:average", {}, "method.target=app.algorithms.base:average: must name a class"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(target: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(FedgeoError) as fault:
        load(target, **params)
    assert str(fault.value).startswith(message)
    assert "\n" not in str(fault.value)


PRESETS = sorted(METHODS.glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_each_preset_is_what_its_file_says(path: Path) -> None:
    preset = yaml.safe_load(path.read_text())
    preset = preset.get("method", preset)  # a method that chooses its model too says where its own keys stand
    assert preset.pop("name") == path.stem
    module, name = preset.pop("target").split(":")
    grid, published = preset.pop("grid", {}), preset.pop("paper", {})
    assert grid.keys() | published.keys() <= preset.keys()
    cls = getattr(importlib.import_module(module), name)
    if issubclass(cls, Algorithm):
        # every hyper-parameter is in the file; the class's own default, where it has one, is the published value
        defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        assert preset.keys() == {f.name for f in fields(cls)}
        stated = {key: value for key, value in preset.items() if not str(value).startswith("${")}
        assert {key: (stated | published)[key] for key in defaults if key in stated} == {
            key: value for key, value in defaults.items() if key in stated
        }
        assert isinstance(load(f"{module}:{name}", **stated), cls)
    else:
        strategy = cls(**preset)
        assert {key: getattr(strategy, key) for key in preset} == preset


def test_the_settings_of_the_ggeur_paper_are_in_the_files() -> None:
    names = ("scaffold", "moon", "feddyn", "fedopt", "fedproto", "fedntd")
    stated = {name: yaml.safe_load((METHODS / f"{name}.yaml").read_text()) for name in names}
    published = {name: keys | keys["paper"] for name, keys in stated.items()}
    assert published["scaffold"]["server_lr"] == 0.25
    assert (published["moon"]["tau"], published["moon"]["mu"]) == (0.5, 1.0)
    assert published["feddyn"]["alpha"] == 0.5
    assert (published["fedopt"]["optimiser"], published["fedopt"]["server_lr"]) == ("sgd", 0.5)
    assert published["fedproto"]["lambda_"] == 2.0
    assert (published["fedntd"]["tau"], published["fedntd"]["beta"]) == (1.0, 1.0)
