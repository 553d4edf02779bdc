"""Robust merging of class statistics: against an independent computation, and laws that hold whatever a site sends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from app.geometry.class_statistics import ClassStatistics, gather, merge
from app.geometry.robust import capped, far_from_others, geometric_median, tempered

P, CLASSES = 6, 2
POINTS = arrays(np.float64, (5, 3), elements=st.floats(-10, 10))
WEIGHTS = arrays(np.float64, (5,), elements=st.floats(0.5, 2))


def sites(samples: int, number: int = 5, covariances: bool = True) -> dict[int, ClassStatistics]:
    """Sites with so many samples a class: 2 are packed as factors, 40 as triangles."""
    found = {}
    for site in range(number):
        rng = np.random.default_rng([samples, site])
        x = rng.standard_normal((samples * CLASSES, P)) * np.arange(1, P + 1) + 3
        found[site] = gather(x, np.arange(len(x)) % CLASSES, covariances)
    return found


def moments(own: ClassStatistics, row: int, origin: np.ndarray, scale: float) -> np.ndarray:
    """E z z^T, z = (1, (x - origin) / scale), written out."""
    d = (own.means[row] - origin) / scale
    made = np.empty((P + 1, P + 1))
    made[0, 0], made[0, 1:], made[1:, 0] = 1, d, d
    made[1:, 1:] = own.covariance(row) / scale**2 + np.outer(d, d)
    return made


def frame(parts: dict[int, ClassStatistics], row: int) -> tuple[np.ndarray, float]:
    origin = np.median([part.means[row] for part in parts.values()], axis=0)
    squares = [np.trace(p.covariance(row)) + np.sum((p.means[row] - origin) ** 2) for p in parts.values()]
    return origin, float(np.sqrt(np.median(squares)))


def with_site(parts: dict[int, ClassStatistics], site: int, **changes: np.ndarray) -> dict[int, ClassStatistics]:
    return parts | {site: replace(parts[site], **changes)}


# --- the geometric median ---


@given(POINTS, WEIGHTS)
def test_the_geometric_median_has_the_least_sum_of_distances(points: np.ndarray, weights: np.ndarray) -> None:
    def cost(at: np.ndarray) -> float:
        return float(weights @ np.linalg.norm(points - at, axis=1))

    found = geometric_median(points, weights)
    tried = [minimize(cost, start, method="Nelder-Mead", options={"maxiter": 2000}).fun for start in (found, *points)]
    # a tie of weights converges slowly
    assert cost(found) <= min(*tried, *map(cost, points)) + 1e-4 * (1 + np.abs(points).max())


@given(POINTS, WEIGHTS, arrays(np.float64, (3,), elements=st.floats(-100, 100)), st.floats(0.1, 10))
def test_it_moves_and_grows_with_the_points(p: np.ndarray, w: np.ndarray, shift: np.ndarray, scale: float) -> None:
    def cost(at: np.ndarray) -> float:
        return float(w @ np.linalg.norm(p - at, axis=1))

    moved = (geometric_median(scale * p + shift, w) - shift) / scale
    assert cost(moved) == pytest.approx(cost(geometric_median(p, w)), rel=1e-5, abs=1e-5)


def test_on_a_line_it_is_the_median_and_a_majority_has_its_way() -> None:
    line = np.array([[0.0], [1.0], [2.0], [7.0], [1e9]])
    assert geometric_median(line, np.ones(5)) == pytest.approx(2.0, abs=1e-3)
    assert geometric_median(line, np.array([1, 5, 1, 1, 1])) == pytest.approx(1.0, abs=1e-3)


@given(st.floats(1, 1e12))
def test_one_point_of_five_cannot_carry_it_away(size: float) -> None:
    points = np.random.default_rng(0).standard_normal((5, 3))
    points[2] = size
    others = np.delete(points, 2, axis=0)
    radius = np.linalg.norm(others - others.mean(axis=0), axis=1).max()
    assert np.linalg.norm(geometric_median(points, np.ones(5)) - others.mean(axis=0)) < 2 * radius


def test_weights_are_capped_at_a_multiple_of_their_median() -> None:
    weights = np.array([1.0, 10.0, 20.0, 1e6, 30.0])
    assert capped(weights, None) is weights
    assert capped(weights, 2.0).tolist() == [1, 10, 20, 40, 30]
    assert capped(np.empty(0), 2.0).tolist() == []


# --- class statistics ---


@pytest.mark.parametrize("samples", [2, 40])
def test_the_median_is_that_of_the_matrices_of_moments(samples: int) -> None:
    parts = sites(samples)
    parts = with_site(parts, 3, means=parts[3].means + 4, counts=parts[3].counts * 1000)
    found = tempered(parts, "median")
    assert list(found) == [0] and found[0].counts.tolist() == merge(parts.values()).counts.tolist()
    for row in range(CLASSES):
        origin, scale = frame(parts, row)
        points = np.stack([moments(part, row, origin, scale).ravel() for part in parts.values()])
        expected = geometric_median(points, np.ones(5)).reshape(P + 1, P + 1)  # counts are capped at their median
        np.testing.assert_allclose(moments(found[0], row, origin, scale), expected, atol=1e-6)


@pytest.mark.parametrize("samples", [2, 40])
def test_clipping_draws_the_far_sites_to_the_usual_distance(samples: int) -> None:
    parts = sites(samples)
    parts = with_site(parts, 3, factors=100 * parts[3].factors, triangles=1e4 * parts[3].triangles)
    centre, found = tempered(parts, "median")[0], tempered(parts, "clip")
    for row in range(CLASSES):
        origin, scale = frame(parts, row)
        at = moments(centre, row, origin, scale)
        before, after = (
            np.array([np.linalg.norm(moments(p, row, origin, scale) - at) for p in which.values()])
            for which in (parts, found)
        )
        np.testing.assert_allclose(after, np.minimum(before, np.median(before)), rtol=1e-5, atol=1e-6)
        assert before[3] > 100 * after[3]
    assert all(found[site].counts.tolist() == parts[site].counts.tolist() for site in parts)


@pytest.mark.parametrize("how", ["clip", "median"])
@given(size=st.floats(10, 1e6), what=st.sampled_from(["means", "factors"]))
def test_whatever_one_site_sends_the_merged_class_stays_near(how: str, size: float, what: str) -> None:
    parts = sites(2)
    honest = merge([part for site, part in parts.items() if site != 1])
    lying = with_site(parts, 1, **{what: size * getattr(parts[1], what)})
    merged = merge(tempered(lying, how).values())  # type: ignore[arg-type]
    for row in range(CLASSES):
        spread = np.sqrt(honest.trace(row))
        assert np.linalg.norm(merged.means[row] - honest.means[row]) < 2 * spread
        assert merged.trace(row) < 10 * spread**2


def test_none_changes_nothing_and_equal_sites_neither() -> None:
    parts = sites(2)
    assert all(tempered(parts, "none")[site] is parts[site] for site in parts)
    same = dict.fromkeys(range(4), parts[0])
    for how in ("clip", "median"):
        merged = merge(tempered(same, how).values())  # type: ignore[arg-type]
        np.testing.assert_allclose(merged.means, parts[0].means, atol=1e-6)
        np.testing.assert_allclose(merged.covariance(1), parts[0].covariance(1), atol=1e-6)


def test_a_class_is_that_of_its_holders_and_means_alone_will_do() -> None:
    parts = sites(2, covariances=False)
    parts[2] = parts[2].only(np.array([False, True]))
    for how in ("clip", "median"):
        found = tempered(parts, how)  # type: ignore[arg-type]
        assert merge(found.values()).classes.tolist() == [0, 1]
    assert tempered(parts, "clip")[2].classes.tolist() == [1]
    assert len(tempered({0: parts[0].only(np.zeros(2, dtype=bool))}, "clip")[0]) == 0


def test_who_is_far_from_the_others_is_named_with_the_class() -> None:
    parts = sites(40)
    assert far_from_others(parts) == {}
    moved = parts[1].means.copy()
    moved[1] += 5
    ((site, (label, words)),) = far_from_others(with_site(parts, 1, means=moved)).items()
    assert (site, label) == (1, 1) and words.startswith("mean lies")
    ((site, (_, words)),) = far_from_others(with_site(parts, 4, triangles=1e6 * parts[4].triangles)).items()
    assert site == 4 and words.startswith("spread is 1.06e+03 times")
    assert far_from_others({site: parts[site] for site in (0, 1)}) == {}  # of two nobody can tell
