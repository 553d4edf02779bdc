"""The domains' shifts against a known truth, an independent least-squares solver, and their symmetries."""

import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.geometry.domain_shift import PRIOR_COUNT, fit


def table(seed: int, classes: int = 6, domains: int = 4, p: int = 5, keep: float = 1.0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    m, delta = rng.normal(size=(classes, p)), rng.normal(size=(domains, p))
    cells = [(c, d) for c in range(classes) for d in range(domains) if rng.random() < keep or c == d or d == 0]
    c, d = np.array(cells).T
    return c, d, rng.integers(1, 50, len(cells)), m[c] + delta[d], m, delta


def test_an_exact_model_is_found_from_some_of_its_cells() -> None:
    c, d, n, means, _, delta = table(0, keep=0.4)
    found = fit(c, d, n, means, ridge=1e-10)
    between = found.deltas[:, None] - found.deltas[None]
    np.testing.assert_allclose(between, delta[:, None] - delta[None], atol=1e-7)
    np.testing.assert_allclose(found.centres[c] + found.deltas[d], means, atol=1e-7)


def test_noisy_means_give_the_weighted_least_squares_solution() -> None:
    c, d, n, means, m, delta = table(1, keep=0.6)
    means = means + np.random.default_rng(2).normal(size=means.shape)
    found = fit(c, d, n, means, ridge=0.5)
    root = np.sqrt(n / (n + PRIOR_COUNT))[:, None]
    rows = np.zeros((len(c) + len(delta), len(m) + len(delta)))
    rows[np.arange(len(c)), c] = rows[np.arange(len(c)), len(m) + d] = root[:, 0]
    rows[len(c) + np.arange(len(delta)), len(m) + np.arange(len(delta))] = np.sqrt(0.5)
    right = np.concatenate([root * means, np.zeros((len(delta), means.shape[1]))])
    reference = np.linalg.lstsq(rows, right, rcond=None)[0]
    np.testing.assert_allclose(np.concatenate([found.centres, found.deltas]), reference, atol=1e-9)


def test_one_domain_has_no_shift() -> None:
    c = np.arange(3)
    found = fit(c, np.zeros(3, int), np.full(3, 9), np.eye(3))
    np.testing.assert_allclose(found.deltas, 0, atol=1e-9)
    np.testing.assert_allclose(found.centres, np.eye(3), atol=1e-9)


def test_the_order_of_the_cells_changes_nothing() -> None:
    c, d, n, means, *_ = table(3)
    order = np.random.default_rng(4).permutation(len(c))
    np.testing.assert_allclose(fit(c[order], d[order], n[order], means[order]).deltas, fit(c, d, n, means).deltas)


def test_a_cell_given_twice_is_refused() -> None:
    with pytest.raises(FedgeoError, match="two means in one domain"):
        fit(np.array([0, 0]), np.array([1, 1]), np.array([2, 3]), np.ones((2, 4)))
