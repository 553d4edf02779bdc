"""Attacks: what a hostile client sends, written out; who is hostile; what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.attacks import registry
from app.attacks.alie import ALittleIsEnough
from app.attacks.base import Attack
from app.attacks.ipm import InnerProductManipulation
from app.attacks.label_flip import LabelFlip
from app.attacks.noise import Noise
from app.attacks.poisoned_statistics import PoisonedStatistics
from app.attacks.scaled import Scaled
from app.attacks.sign_flip import SignFlip
from app.common.code import CONF
from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, check_run
from app.geometry.class_statistics import gather
from app.geometry.statistics_checks import check_statistics
from app.models.base import Weights
from app.strategies.compatibility import check

NAMES = sorted(path.stem for path in (CONF / "attack").glob("*.yaml") if path.stem != "none")


def weights(seed: int) -> Weights:
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(3, 4, generator=g), "b": torch.randn(3, generator=g)}


START, LEARNED = weights(0), {2: weights(1), 5: weights(2), 7: weights(3)}


def sent(attack: Attack, client: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    found = attack.weights(START, LEARNED, client, np.random.default_rng(seed))
    assert {name: (w.shape, w.dtype) for name, w in found.items()} == {n: (w.shape, w.dtype) for n, w in START.items()}
    return {name: w.numpy() for name, w in found.items()}


def test_each_sends_what_its_formula_says() -> None:
    for name, start in START.items():
        w, own = start.numpy(), LEARNED[5][name].numpy()
        everyone = np.stack([LEARNED[k][name].numpy() for k in (2, 5, 7)]).astype(np.float64)
        mean, deviation = everyone.mean(axis=0), everyone.std(axis=0)
        np.testing.assert_allclose(sent(SignFlip(factor=2.0))[name], w - 2 * (own - w), rtol=1e-5)
        np.testing.assert_allclose(sent(Scaled())[name], 10 * own, rtol=1e-6)
        np.testing.assert_allclose(sent(ALittleIsEnough(z=1.5))[name], mean - 1.5 * deviation, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(sent(InnerProductManipulation())[name], w - 10 * (mean - w), rtol=1e-4, atol=1e-5)


def test_noise_is_as_large_as_it_says_and_the_same_again() -> None:
    large = {"w": torch.zeros(200, 200)}
    found = Noise(factor=3.0).weights(large, {1: {"w": torch.full((200, 200), 0.5)}}, 1, np.random.default_rng(0))
    assert float((found["w"] - 0.5).std()) == pytest.approx(1.5, rel=0.02)
    np.testing.assert_array_equal(sent(Noise())["w"], sent(Noise())["w"])
    assert (sent(Noise())["w"] != sent(Noise(), seed=1)["w"]).all()


def test_labels_are_flipped_end_to_end() -> None:
    assert LabelFlip().labels(np.array([0, 1, 9]), 10).tolist() == [9, 8, 0]
    assert (LabelFlip().claimed, LabelFlip(counts=50).claimed, Scaled().claimed) == (1, 50, 1)


@pytest.mark.parametrize("samples", [3, 40])
def test_poisoned_statistics_pass_every_check_of_one_client(samples: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * samples, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = gather(x, np.repeat([1, 4, 6], samples))
    moved = PoisonedStatistics().statistics(found)
    check_statistics(moved, np.bincount(moved.classes, moved.counts, minlength=7).astype(int), 8, True, "c", 1.0)
    assert (moved.classes.tolist(), moved.counts.tolist()) == ([1, 4, 6], [samples] * 3)
    for row, other in enumerate((1, 2, 0)):
        np.testing.assert_array_equal(moved.means[row], found.means[other])
        np.testing.assert_allclose(moved.covariance(row), found.covariance(other), atol=1e-15)
    wide = PoisonedStatistics(spread=10.0).statistics(found)
    np.testing.assert_allclose(wide.covariance(2), 100 * found.covariance(0), rtol=1e-12)


def test_poisoned_statistics_have_no_more_directions_than_samples() -> None:
    x = np.eye(24)[:12]
    moved = PoisonedStatistics().statistics(gather(x, np.repeat([0, 1], [2, 10])))
    assert moved.ranks.tolist() == [1, 1] and moved.trace(0) == pytest.approx(0.1)


@pytest.mark.parametrize("name", NAMES)
def test_each_preset_is_what_its_file_says(name: str) -> None:
    preset = yaml.safe_load((CONF / "attack" / f"{name}.yaml").read_text())
    cls = registry.find(name)
    assert preset.pop("name") == cls.name == name and preset.pop("share") == 0.2
    assert preset == {f.name: f.default for f in dataclasses.fields(cls)}
    assert registry.load(load([f"attack={name}"])) == cls()


@given(st.integers(0, 1000), st.floats(0.2, 1.0))
def test_as_many_as_the_share_are_hostile_and_the_seed_says_who(seed: int, share: float) -> None:
    config = load([f"seed={seed}", "attack=noise", f"attack.share={share}"])
    found = registry.hostile(config, 10)
    assert len(found) == len(set(found)) == round(10 * share) and list(found) == sorted(found)
    assert found == registry.hostile(config, 10) and set(found) <= set(range(10))


def test_without_an_attack_nobody_is_hostile() -> None:
    assert registry.hostile(load(["attack.share=1.0"]), 10) == () and registry.load(load([])) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack=noise", "engine=deployment"], "attack=noise is for simulations"),
        (["attack=sign_flip", "method=lda"], "attack=sign_flip changes weights, which method=lda does not send"),
        (["attack=poisoned_statistics", "augmentation=none"], "attack=poisoned_statistics changes class statistics"),
        (["attack=alie", "method=scaffold"], "attack=alie: clients of method=scaffold keep a state"),
        (["attack=label_flip", "method=centralised"], "attack=label_flip: method=centralised has no clients"),
        (["attack=label_flip", "attack.counts=9", "steps=equal"], "attack.counts=9: steps=equal is planned from"),
        (["attack=label_flip", "attack.counts=0"], "attack.counts=0: must be greater than or equal to 1"),
    ],
)
def test_an_attack_that_can_do_nothing_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        check(load(words))


def test_a_site_takes_part_in_no_attack() -> None:
    check_run(load(["engine=deployment"]))
    with pytest.raises(Refusal, match="attack=noise is for simulations"):
        check_run(load(["engine=deployment", "attack=noise"]))


def test_a_share_that_is_nobody_is_refused() -> None:
    with pytest.raises(FedgeoError, match="attack.share=0.1 of 10 clients is 1: attack=alie needs 2"):
        registry.hostile(load(["attack=alie", "attack.share=0.1"]), 10)
