"""A client's own model: priors, temperatures, ensembles, LDA alone; intervals of shares and of paired differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from app.data.own_mix import own_test
from app.geometry.class_statistics import gather
from app.geometry.closed_form import ABSENT, lda
from app.personal import heads
from app.personal.intervals import paired, wilson


def head(seed: int, classes: int = 3, p: int = 4) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {heads.WEIGHT: torch.randn(classes, p, generator=made), heads.BIAS: torch.randn(classes, generator=made)}


def log_posteriors(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x.double() @ weights[heads.WEIGHT].double().T + weights[heads.BIAS].double(), dim=1)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 500), min_size=3, max_size=3))
def test_another_prior_is_bayes_rule(seed: int, counts: list[int]) -> None:
    trained, own = heads.shares(np.array([10, 20, 30]), 1.0), heads.shares(np.array(counts), 1.0)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    posterior = log_posteriors(head(seed), x).exp() / torch.from_numpy(trained) * torch.from_numpy(own)
    found = log_posteriors(heads.with_prior(head(seed), own, trained), x).exp()
    assert torch.allclose(found, posterior / posterior.sum(1, keepdim=True), atol=1e-6)
    back = heads.with_prior(heads.with_prior(head(seed), own, trained), trained, own)
    assert torch.allclose(back[heads.BIAS], head(seed)[heads.BIAS], atol=1e-5)


def test_no_share_is_zero_and_all_together_are_one() -> None:
    found = heads.shares(np.array([0, 3, 0]), 1.0)
    assert found.tolist() == pytest.approx([1 / 6, 4 / 6, 1 / 6])


def test_an_ensemble_is_the_geometric_mean_of_posteriors() -> None:
    x, both = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), [head(1), head(2)]
    mean = torch.stack([log_posteriors(each, x) for each in both]).mean(0)
    found = log_posteriors(heads.ensemble(both), x)
    assert torch.allclose(found, mean - torch.logsumexp(mean, 1, keepdim=True), atol=1e-5)


def test_a_temperature_makes_scores_log_posteriors() -> None:
    """Labels drawn from a head's posteriors; the same head with logits 7 times too small is put right."""
    made = torch.Generator().manual_seed(0)
    x, true = torch.randn(20_000, 4, generator=made), head(3)
    y = torch.multinomial(log_posteriors(true, x).exp(), 1, generator=made).squeeze(1)
    shrunk = {name: value / 7 for name, value in true.items()}
    found = heads.tempered(shrunk, x, y)
    assert float((found[heads.WEIGHT] / shrunk[heads.WEIGHT]).mean()) == pytest.approx(7, rel=0.05)


@pytest.mark.parametrize(("n", "p"), [(40, 6), (20, 50)])
@pytest.mark.parametrize("shrinkage", [0.01, 0.3, 1.0])
def test_the_path_is_lda(n: int, p: int, shrinkage: float) -> None:
    """As from class statistics, with a class that nobody has; more samples than dimensions, and fewer."""
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, p)), rng.integers(0, 3, n)
    y[y == 1] = 4
    weight, bias = heads.LDAPath(x, y, 6).head(shrinkage)
    expected = lda(gather(x, y), 6, shrinkage)
    np.testing.assert_allclose(weight, expected[0], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-7, atol=1e-7)
    assert bias[1] == ABSENT


@pytest.mark.parametrize("labels", [[2], [0, 1], [3] * 5, [0, 0, 0, 1]])
def test_lda_of_hardly_any_samples(labels: list[int]) -> None:
    y = np.array(labels)
    x = np.random.default_rng(0).normal(size=(len(y), 8)).astype(np.float32)
    found = heads.own_lda(x, y, 4, seed=1)
    answers = log_posteriors(found, torch.from_numpy(x)).argmax(1).numpy()
    assert set(answers) <= set(labels) and all(torch.isfinite(value).all() for value in found.values())


def test_the_shrinkage_is_validated() -> None:
    """Few samples of many dimensions want more of it than many samples of few."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(2, 60)) / 4

    def right(n: int) -> float:
        y = rng.integers(0, 2, n)
        found = heads.own_lda(means[y] + rng.normal(size=(n, 60)), y, 2, seed=0)
        fresh = rng.integers(0, 2, 2000)
        x = torch.from_numpy(means[fresh] + rng.normal(size=(2000, 60)))
        return float((log_posteriors(found, x).argmax(1).numpy() == fresh).mean())

    assert right(40) > 0.7 and right(1000) > 0.8


# --- intervals ---


def test_wilson_of_known_values() -> None:
    """Newcombe (1998), Table I: 81 of 263."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0) and wilson(0, 20)[0] == pytest.approx(0)


def test_mcnemar_is_the_binomial_test() -> None:
    one = np.array([True] * 9 + [False] * 2 + [True] * 30)
    other = np.array([False] * 9 + [True] * 2 + [True] * 30)
    found = paired(one, other)
    assert found.difference == pytest.approx(7 / 41)
    assert found.p == pytest.approx(2 * binom.cdf(2, 11, 0.5))
    turned = paired(other, one)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def test_no_difference_is_unclear_and_a_large_one_is_not() -> None:
    right = np.arange(200) % 3 > 0
    assert paired(right, right).verdict == "unclear" and paired(right, right).p == 1
    assert paired(np.ones(200, bool), right).verdict == "better"
    assert paired(right, np.ones(200, bool)).verdict == "worse"
    assert paired(np.empty(0, bool), np.empty(0, bool)).verdict == "unclear"


@pytest.mark.parametrize("n", [30, 240])
def test_the_interval_covers_what_it_says(n: int) -> None:
    """Two models of equal merit: at most one in twenty is called better or worse, within what 2,000 draws can tell."""
    rng = np.random.default_rng(n)
    cells = rng.multinomial(n, [0.7, 0.1, 0.1, 0.1], size=2000)
    called = 0
    for both, one, other, _ in cells:
        rows = np.zeros((2, n), dtype=bool)
        rows[:, :both] = True
        rows[0, both : both + one] = True
        rows[1, both + one : both + one + other] = True
        called += paired(rows[0], rows[1]).verdict != "unclear"
    assert called / 2000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


# --- test samples of a client's own ---


@given(st.lists(st.integers(0, 60), min_size=4, max_size=4), st.integers(0, 100))
def test_own_test_samples_follow_the_training_shares(held: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(4), [30, 20, 10, 40])
    training = np.repeat(np.arange(4), held)
    rows = own_test(labels, training, seed, client=3)
    assert len(set(rows.tolist())) == len(rows) and np.array_equal(rows, np.sort(rows))
    assert np.array_equal(rows, own_test(labels, training, seed, client=3))
    drawn = np.bincount(labels[rows], minlength=4)
    assert ((drawn > 0) == (np.array(held) > 0)).all()
    if len(rows):
        assert np.abs(drawn - len(rows) * np.array(held) / sum(held)).max() <= 2.5


def test_a_class_that_nobody_is_tested_on_is_left_out() -> None:
    assert own_test(np.array([0, 0, 1]), np.array([5, 5]), 1, 0).tolist() == []
    assert own_test(np.array([0, 0, 1]), np.array([0, 5]), 1, 0).tolist() == [0, 1]
