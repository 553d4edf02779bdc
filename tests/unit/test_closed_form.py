"""Closed-form heads against scikit-learn on the pooled samples, whatever the partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from app.common.errors import FedgeoError
from app.geometry.class_statistics import gather, merge
from app.geometry.closed_form import ABSENT, lda, means_only, ridge, shrink

P, CLASSES = 12, 5


def samples(seed: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(P, P))
    y = rng.integers(0, CLASSES, n)
    return rng.normal(size=(CLASSES, P))[y] * 1.5 + rng.normal(size=(n, P)) @ mixing * 0.3 + 4, y


def parts(x: np.ndarray, y: np.ndarray, clients: np.ndarray) -> list:
    return [gather(x[clients == k], y[clients == k]) for k in np.unique(clients)]


partitions = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).integers(0, 7, 400))


@given(partitions, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=20)
def test_lda_equals_scikit_learn_on_the_pooled_data(clients: np.ndarray, shrinkage: float) -> None:
    x, y = samples(0)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x, y)
    weight, bias = lda(merge(parts(x, y, clients)), CLASSES, shrinkage)
    np.testing.assert_allclose(weight, reference.coef_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(bias, reference.intercept_, rtol=1e-8, atol=1e-8)


@given(partitions, st.sampled_from([0.0, 1.0, 100.0]))
@settings(max_examples=20)
def test_ridge_equals_scikit_learn_on_the_pooled_data(clients: np.ndarray, alpha: float) -> None:
    x, y = samples(1)
    reference = Ridge(alpha=alpha).fit(x, np.eye(CLASSES)[y])
    weight, bias = ridge(merge(parts(x, y, clients)), CLASSES, alpha)
    np.testing.assert_allclose(weight, reference.coef_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(bias, reference.intercept_, rtol=1e-8, atol=1e-8)


def test_means_only_finds_the_covariance_from_the_means_of_like_clients() -> None:
    """Its law: over many clients with like samples it tends to LDA with the true covariance."""
    rng = np.random.default_rng(2)
    x, y = samples(3, n=60_000)
    clients = rng.integers(0, 3_000, len(y))
    shared = parts(x, y, clients)
    merged = merge(shared)
    found, full = means_only(shared, merged, CLASSES, 0.0), lda(merged, CLASSES, 0.0)
    assert np.linalg.norm(found[0] - full[0]) < 0.05 * np.linalg.norm(full[0])


def test_means_only_reads_no_covariance() -> None:
    x, y = samples(4)
    shared = parts(x, y, np.arange(400) % 5)
    merged = merge(shared)
    blind = [gather(np.repeat(p.means, 2, 0), np.repeat(p.classes, 2)) for p in shared]  # same means, no spread
    for part, original in zip(blind, shared, strict=True):
        object.__setattr__(part, "counts", original.counts)
    np.testing.assert_array_equal(means_only(blind, merged, CLASSES)[0], means_only(shared, merged, CLASSES)[0])


def test_means_only_needs_a_class_at_two_clients() -> None:
    x, y = samples(5)
    shared = parts(x, y, y)
    with pytest.raises(FedgeoError, match="no class is held by two clients"):
        means_only(shared, merge(shared), CLASSES)


@pytest.mark.parametrize("head", [lda, ridge])
def test_a_class_that_nobody_holds_is_never_predicted(head) -> None:  # type: ignore[no-untyped-def]
    x, y = samples(6)
    weight, bias = head(merge([gather(x, y)]), CLASSES + 2)
    assert weight.shape == (CLASSES + 2, P) and bias[-1] == ABSENT
    assert (x @ weight.T + bias).argmax(1).max() < CLASSES


def test_shrinkage_keeps_the_trace_and_ends_at_the_sphere() -> None:
    covariance = np.cov(np.random.default_rng(7).normal(size=(50, P)), rowvar=False)
    assert np.trace(shrink(covariance, 0.3)) == pytest.approx(np.trace(covariance))
    np.testing.assert_allclose(shrink(covariance, 1.0), np.eye(P) * np.trace(covariance) / P)
    with pytest.raises(FedgeoError, match="method.shrinkage=2"):
        shrink(covariance, 2)


def test_a_singular_covariance_says_what_to_do() -> None:
    x, y = samples(8, n=400)
    x[:, 0] = 1.0
    with pytest.raises(FedgeoError, match="raise method.shrinkage"):
        ridge(merge([gather(x * 0, y)]), CLASSES, 0.0)
