"""The one-round methods: what their heads are, whatever the partition, and that means-only sees means only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import RidgeClassifier

from app.common.errors import FedgeoError
from app.config.compose import load
from app.geometry.class_geometry import geometry
from app.geometry.class_statistics import ClassStatistics, gather, merge
from app.geometry.closed_form import ABSENT
from app.one_shot.ccvr import CCVR, virtual
from app.one_shot.from_statistics import FromStatistics
from app.one_shot.lda import LDA
from app.one_shot.means_only import MeansOnly
from app.one_shot.ridge import Ridge
from app.strategies.compatibility import check

P, CLASSES = 4, 3


def samples(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three Gaussian classes with one covariance, in unequal shares."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.choice(CLASSES, size=n, p=[0.5, 0.3, 0.2]))
    mixing = np.array([[1.0, 0.4, 0, 0], [0, 0.8, 0.3, 0], [0, 0, 1.2, 0.2], [0, 0, 0, 0.7]])
    centres = np.array([[0, 0, 0, 0], [1.2, -0.5, 0.4, 0.2], [-0.3, 1.1, 0.6, -0.8]])
    return centres[y] + rng.standard_normal((n, P)) @ mixing, y


def shares(seed: int, clients: int, covariances: bool = True) -> list[ClassStatistics]:
    """The same samples, shared out at random."""
    x, y = samples()
    owner = np.random.default_rng(seed).integers(clients, size=len(y))
    return [gather(x[owner == k], y[owner == k], covariances=covariances) for k in range(clients)]


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 6), shrinkage=st.sampled_from([0.0, 0.2, 0.9]))
def test_lda_is_scikit_learns_on_the_pooled_samples_whatever_the_partition(
    seed: int, clients: int, shrinkage: float
) -> None:
    x, y = samples()
    weight, bias = LDA(shrinkage).solve(shares(seed, clients), CLASSES, seed=0)
    priors = np.bincount(y) / len(y)
    centred = x - np.stack([x[y == c].mean(0) for c in range(CLASSES)])[y]
    within = centred.T @ centred / len(y)
    within = (1 - shrinkage) * within + shrinkage * np.trace(within) / P * np.eye(P)
    reference = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Fixed(within), priors=priors).fit(x, y)
    np.testing.assert_allclose(weight, reference.coef_, atol=1e-8)
    np.testing.assert_allclose(bias, reference.intercept_, atol=1e-8)


class _Fixed:
    """A covariance estimator that knows the answer: scikit-learn then does the rest of the discriminant."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance_ = covariance

    def fit(self, x: np.ndarray) -> "_Fixed":
        return self


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 6), alpha=st.sampled_from([0.1, 1.0, 30.0]))
def test_ridge_is_scikit_learns_on_the_pooled_samples_whatever_the_partition(
    seed: int, clients: int, alpha: float
) -> None:
    x, y = samples()
    weight, bias = Ridge(alpha).solve(shares(seed, clients), CLASSES, seed=0)
    reference = RidgeClassifier(alpha=alpha).fit(x, y)  # its targets are -1 and 1: twice ours, less one
    np.testing.assert_allclose(2 * weight, reference.coef_, atol=1e-8)
    np.testing.assert_allclose(2 * bias - 1, reference.intercept_, atol=1e-8)


def test_means_only_gives_the_same_head_with_and_without_covariances_to_see() -> None:
    seen = MeansOnly().head(shares(3, 4), CLASSES, seed=0)
    unseen = MeansOnly().head(shares(3, 4, covariances=False), CLASSES, seed=0)
    assert all(bool((seen[name] == unseen[name]).all()) for name in seen)


def test_means_only_tends_to_lda_as_alike_clients_grow_in_number() -> None:
    x, y = samples(60_000)
    truth, _ = LDA(0.0).solve([gather(x, y)], CLASSES, seed=0)

    def error(clients: int) -> float:
        owner = np.random.default_rng(1).integers(clients, size=len(y))
        parts = [gather(x[owner == k], y[owner == k], covariances=False) for k in range(clients)]
        weight, _ = MeansOnly(0.0).solve(parts, CLASSES, seed=0)
        return float(np.linalg.norm(weight - truth) / np.linalg.norm(truth))

    assert error(1000) < 0.1
    assert error(1000) < error(30)


def test_statistics_without_covariances_hold_the_same_counts_and_means_and_no_more() -> None:
    x, y = samples()
    full, means = gather(x, y), gather(x, y, covariances=False)
    np.testing.assert_array_equal(means.classes, full.classes)
    np.testing.assert_array_equal(means.counts, full.counts)
    np.testing.assert_array_equal(means.means, full.means)
    sent = means.to_arrays("float32")
    assert (sent["ranks"] == 0).all() and sent["triangles"].size == sent["factors"].size == 0
    back = ClassStatistics.from_arrays(sent)
    assert not back.covariance(0).any()


def test_virtual_samples_have_the_classes_shares_means_and_covariances() -> None:
    merged = merge(shares(0, 3))
    x, y = virtual(geometry(merged, explained=1.0), 20_000, CLASSES, seed=5)
    np.testing.assert_allclose(np.bincount(y) / len(y), merged.counts / merged.counts.sum(), atol=1e-4)
    for row in range(CLASSES):
        drawn = x[y == row].astype(np.float64)
        np.testing.assert_allclose(drawn.mean(0), merged.means[row], atol=0.05)
        np.testing.assert_allclose(np.cov(drawn.T), merged.covariance(row), atol=0.05)


def test_ccvr_tends_to_lda_where_the_covariances_are_equal() -> None:
    parts = [gather(*samples(40_000))]
    lda, ccvr = (
        method.solve(parts, CLASSES, seed=2)
        for method in (LDA(0.0), CCVR(samples=20_000, epochs=6, batch_size=500, lr=0.05))
    )
    for one, other in zip(lda, ccvr, strict=True):  # a softmax knows no common part of all classes
        np.testing.assert_allclose(other - other.mean(0), one - one.mean(0), atol=0.12)


@pytest.mark.parametrize("method", [LDA(), Ridge(), MeansOnly(), CCVR(samples=50, epochs=2)])
def test_a_class_that_nobody_holds_is_never_predicted(method: FromStatistics) -> None:
    weights = method.head(shares(1, 3), CLASSES + 1, seed=0)
    assert weights["linear.weight"].shape == (CLASSES + 1, P) and not weights["linear.weight"][-1].any()
    assert float(weights["linear.bias"][-1]) == np.float32(ABSENT)


def test_ccvr_is_repeatable_and_follows_its_seed() -> None:
    heads = [CCVR(samples=50, epochs=2).head(shares(1, 3), CLASSES, seed)["linear.weight"] for seed in (1, 1, 2)]
    assert bool((heads[0] == heads[1]).all()) and not bool((heads[0] == heads[2]).all())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method=lda", "model.hidden=8"], "method=lda is a linear classifier: set model.hidden=0"),
        (["model.init=lda", "model.hidden=8"], "model.init=lda is a linear head: set model.hidden=0"),
        (["model.init=ridge", "method=local"], "method=local shares nothing"),
        (["experiment=eeg_demo", "method=ccvr"], "choose method=mdm or tangent_lr"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides: list[str], words: str) -> None:
    with pytest.raises(FedgeoError, match=words):
        check(load(overrides))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method=lda method.shrinkage=1.5", "method.shrinkage=1.5: must be less than or equal to 1"),
        ("method=ridge method.alpha=-1.0", "method.alpha=-1.0: must be greater than or equal to 0"),
        ("method=ccvr method.samples=0", "method.samples=0: must be greater than or equal to 1"),
    ],
)
def test_bad_settings_are_refused_by_key(override: str, words: str) -> None:
    from app.algorithms.registry import local_algorithm

    with pytest.raises(FedgeoError, match=words):
        local_algorithm(load(override))
