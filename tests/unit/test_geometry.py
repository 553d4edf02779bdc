"""Geometric shapes: the eigenvectors that numpy's SVD finds too, the cut, Eq. 3, and the message."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import FedgeoError
from app.geometry.class_geometry import (
    Geometry,
    Shape,
    factor_shape,
    geometry,
    shape,
    similarity_matrix,
)
from app.geometry.class_statistics import TRIANGLE, ClassStatistics, gather, merge


def rotation(p: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))[0]


def covariance_of(eigenvalues: list[float], seed: int = 0) -> np.ndarray:
    basis = rotation(len(eigenvalues), seed)
    covariance = basis @ np.diag(eigenvalues) @ basis.T
    return (covariance + covariance.T) / 2


def rebuilt(s: Shape) -> np.ndarray:
    return s.eigenvectors @ np.diag(s.eigenvalues) @ s.eigenvectors.T


def test_shape_finds_the_eigenvectors_that_made_the_covariance() -> None:
    values = [5.0, 3.0, 1.0, 0.5]
    found = shape(covariance_of(values), explained=1.0)
    np.testing.assert_allclose(found.eigenvalues, values, rtol=1e-13)
    np.testing.assert_allclose(np.abs(found.eigenvectors.T @ rotation(4)), np.eye(4), atol=1e-13)
    assert found.eigenvectors.shape == (4, 4) and found.rank == 4
    assert found.total_variance == pytest.approx(9.5, rel=1e-14)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), p=st.integers(1, 16), n=st.integers(1, 24))
def test_shape_agrees_with_the_svd_of_the_samples(seed: int, p: int, n: int) -> None:
    x = np.random.default_rng(seed).standard_normal((n, p))
    centred = x - x.mean(axis=0)
    expected = np.linalg.svd(centred / np.sqrt(n), compute_uv=False) ** 2
    covariance = np.cov(x, rowvar=False, bias=True).reshape(p, p)
    whole = shape(covariance, explained=1.0)
    np.testing.assert_allclose(whole.eigenvalues, expected[: whole.rank], atol=1e-12)
    np.testing.assert_allclose(rebuilt(whole), covariance, atol=1e-12)
    np.testing.assert_allclose(whole.eigenvectors.T @ whole.eigenvectors, np.eye(whole.rank), atol=1e-12)
    largest = np.abs(whole.eigenvectors).argmax(axis=0)
    assert (whole.eigenvectors[largest, np.arange(whole.rank)] > 0).all()
    assert (np.diff(whole.eigenvalues) <= 0).all() and (whole.eigenvalues > 0).all()
    cut = shape(covariance, explained=0.8)
    share = np.cumsum(whole.eigenvalues) / max(whole.total_variance, 1e-300)
    assert cut.rank == int(np.count_nonzero(share < 0.8 * (1 - 1e-12))) + bool(whole.rank)
    assert cut.total_variance == whole.total_variance


@pytest.mark.parametrize(
    ("explained", "rank"), [(0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (0.95, 3), (0.96, 4), (1.0, 4)]
)
def test_rank_is_the_smallest_that_explains_enough(explained: float, rank: int) -> None:
    assert shape(covariance_of([0.5, 0.3, 0.15, 0.05]), explained).rank == rank


def test_equal_eigenvalues_that_reach_the_share_exactly_are_enough() -> None:
    assert [shape(covariance_of([0.1] * 20, seed), 0.95).rank for seed in range(5)] == [19] * 5
    assert shape(covariance_of([1.0, 0.0, 0.0]), 1 - 1e-14).rank == 1


def test_max_rank_cuts_further() -> None:
    covariance = covariance_of([4.0, 3.0, 2.0, 1.0])
    assert [shape(covariance, 1.0, max_rank).rank for max_rank in (1, 3, 9, None)] == [1, 3, 4, 4]
    assert shape(covariance, 1.0, 1).total_variance == pytest.approx(10)


def test_zero_covariance_has_rank_zero() -> None:
    for found in (shape(np.zeros((5, 5))), shape(np.zeros((5, 5)), 1.0), factor_shape(np.empty((0, 5)))):
        assert found.rank == 0 and found.eigenvectors.shape == (5, 0) and found.total_variance == 0


def test_zero_and_slightly_negative_eigenvalues_are_dropped() -> None:
    found = shape(covariance_of([2.0, 1.0, 0.0, -1e-7]), explained=1.0)
    assert found.rank == 2
    assert found.total_variance == pytest.approx(3, rel=1e-12)


def test_float32_packing_leaves_a_shape() -> None:
    x = np.random.default_rng(1).standard_normal((40, 64)) * np.geomspace(1, 1e-4, 64)
    rounded = np.cov(x, rowvar=False, bias=True).astype(np.float32)
    found = shape(rounded, 1.0)
    assert np.linalg.eigvalsh(rounded.astype(float))[0] < 0 and (found.eigenvalues >= 0).all()
    np.testing.assert_allclose(rebuilt(found), rounded, atol=1e-6)


def test_factor_gives_the_same_shape_as_its_covariance() -> None:
    factor = np.random.default_rng(2).standard_normal((6, 32))
    for explained, max_rank in ((1.0, None), (0.9, None), (0.9, 2)):
        a, b = factor_shape(factor, explained, max_rank), shape(factor.T @ factor, explained, max_rank)
        np.testing.assert_allclose(a.eigenvalues, b.eigenvalues, rtol=1e-10)
        np.testing.assert_allclose(a.eigenvectors, b.eigenvectors, atol=1e-10)
        assert a.total_variance == pytest.approx(b.total_variance)


@pytest.mark.parametrize(
    ("covariance", "expected"),
    [
        (np.diag([1.0, -0.1]), "not positive semidefinite: its eigenvalues run from -0.1 to 1"),
        (-np.eye(2), "not positive semidefinite"),
        (np.array([[1.0, 0.2], [0.1, 1.0]]), "not symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "holds NaN"),
        (np.ones((2, 3)), "must be square, not \\(2, 3\\)"),
        (np.ones(3), "must be square"),
        (np.ones((0, 0)), "must be square"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: np.ndarray, expected: str) -> None:
    with pytest.raises(FedgeoError, match=expected):
        shape(covariance)


@pytest.mark.parametrize("explained", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_out_of_range_is_refused(explained: float) -> None:
    with pytest.raises(FedgeoError, match="explained must be above 0 and at most 1"):
        shape(np.eye(3), explained)
    with pytest.raises(FedgeoError, match="explained must be above 0 and at most 1"):
        factor_shape(np.eye(3), explained)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(FedgeoError, match="max_rank must be at least 1"):
        shape(np.eye(3), max_rank=0)
    with pytest.raises(FedgeoError, match="factor holds NaN"):
        factor_shape(np.full((2, 3), np.nan))
    with pytest.raises(FedgeoError, match="leading eigenvectors must be at least 1, not 0"):
        similarity(shape(np.eye(3)), shape(np.eye(3)), leading=0)
    with pytest.raises(FedgeoError, match="different dimensions cannot be compared: \\[3, 4\\]"):
        similarity(shape(np.eye(3)), shape(np.eye(4)))


def similarity(a: Shape, b: Shape, leading: int = 5) -> float:
    return float(similarity_matrix([a], [b], leading)[0, 0])


def test_similarity_is_equation_three() -> None:
    a, b = shape(covariance_of([6, 5, 4, 3, 2, 1], 1), 1.0), shape(covariance_of([6, 5, 4, 3, 2, 1], 2), 1.0)
    by_hand = 0.0
    for m in range(5):
        by_hand += abs(sum(a.eigenvectors[j, m] * b.eigenvectors[j, m] for j in range(6)))
    assert similarity(a, b) == pytest.approx(by_hand, rel=1e-13)
    assert similarity(a, b) == pytest.approx(similarity(b, a), rel=1e-13)
    assert similarity(a, a) == pytest.approx(5) and similarity(a, a, leading=9) == pytest.approx(6)


def test_similarity_runs_over_the_lesser_rank() -> None:
    a, b = shape(covariance_of([3, 2, 1, 0.5]), 1.0), shape(covariance_of([3, 2, 0, 0]), 1.0)
    assert similarity(a, b) == pytest.approx(2)
    assert similarity(a, shape(np.zeros((4, 4)))) == 0
    orthogonal = Shape(a.eigenvalues, np.roll(a.eigenvectors, 1, axis=1), a.total_variance)
    assert similarity(a, orthogonal) == pytest.approx(0, abs=1e-12)


def test_similarity_matrix_holds_every_pair() -> None:
    a = [shape(covariance_of([4, 3, 2, 1], seed), 1.0, rank) for seed, rank in ((1, 4), (2, 1), (3, 2))]
    b = [shape(covariance_of([4, 3, 2, 1], seed), 1.0) for seed in (4, 5)]
    matrix = similarity_matrix(a, b, leading=3)
    assert matrix.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert matrix[i, j] == pytest.approx(similarity(a[i], b[j], leading=3), rel=1e-13)
    assert similarity_matrix([], b).shape == (0, 2)


def clients() -> dict[int, ClassStatistics]:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((120, 12)), np.repeat([0, 2, 3], [4, 56, 60])
    owner = np.where(y == 3, 5, np.arange(120) % 2)
    return {int(k): gather(x[owner == k], y[owner == k]) for k in (5, 0, 1)}


def test_geometry_holds_shapes_means_and_prototypes() -> None:
    parts = clients()
    stats = merge(parts.values())
    assert stats.ranks.tolist() == [3, TRIANGLE, TRIANGLE]
    found = geometry(stats, explained=0.9, prototypes=parts)
    assert found.classes.tolist() == [0, 2, 3] and found.counts.tolist() == [4, 56, 60]
    np.testing.assert_array_equal(found.means, stats.means)
    for row in range(3):
        expected = shape(stats.covariance(row), 0.9)
        np.testing.assert_allclose(found.shapes[row].eigenvalues, expected.eigenvalues, rtol=1e-10)
        np.testing.assert_allclose(found.shapes[row].eigenvectors, expected.eigenvectors, atol=1e-10)
    assert list(zip(found.prototype_classes.tolist(), found.prototype_clients.tolist(), strict=True)) == [
        (0, 0), (0, 1), (2, 0), (2, 1), (3, 5),
    ]  # fmt: skip
    np.testing.assert_array_equal(found.prototype_means[4], parts[5].means[0])
    np.testing.assert_array_equal(found.prototype_means[2], parts[0].means[1])
    assert found.row_of(2) == 1 and found.row_of(1) is None and found.row_of(8) is None
    assert len(geometry(stats).prototype_means) == 0
    assert max(s.rank for s in geometry(stats, max_rank=2).shapes) == 2


def message(dtype: str = "float64") -> dict[str, np.ndarray]:
    parts = clients()
    stats = merge(parts.values())
    return geometry(stats, prototypes=parts).to_arrays(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 0.0), ("float32", 1e-6)])
def test_arrays_bring_back_the_same_geometry(dtype: str, tolerance: float) -> None:
    exact = message()
    back = Geometry.from_arrays(message(dtype))
    again = back.to_arrays()
    assert set(again) == set(exact)
    for name, array in exact.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_allclose(again[name], array, rtol=tolerance, atol=tolerance)
    for each, rank in zip(back.shapes, exact["ranks"], strict=True):
        assert each.rank == rank and each.eigenvectors.shape == (12, rank)


def test_float32_halves_the_message_and_an_empty_one_is_valid() -> None:
    sizes = {dtype: sum(a.nbytes for a in message(dtype).values()) for dtype in ("float64", "float32")}
    assert sizes["float32"] < 0.57 * sizes["float64"]
    empty = geometry(gather(np.empty((0, 7)), np.empty(0, dtype=int)))
    back = Geometry.from_arrays(empty.to_arrays())
    assert len(back) == 0 and back.dimension == 7


def swapped(a: np.ndarray) -> np.ndarray:
    return np.concatenate([a[:1] * 0 + a.min(), a[1:]])


BROKEN: list[tuple[str, Callable[[np.ndarray], np.ndarray], str]] = [
    ("classes", lambda a: a[::-1], "classes must ascend"),
    ("counts", lambda a: a * 0, "counts must be at least 1"),
    ("means", lambda a: a[:2], "means must have shape \\(3, any\\)"),
    ("ranks", lambda a: a + 20, "ranks must lie between 0 and 12"),
    ("ranks", lambda a: a + 1, "eigenvalues must have shape"),
    ("eigenvalues", lambda a: a * np.nan, "eigenvalues holds NaN"),
    ("eigenvalues", lambda a: -a, "the eigenvalues of class 0 must descend and not be negative"),
    ("eigenvalues", swapped, "the eigenvalues of class 0 must descend"),
    ("eigenvalues", lambda a: 2 * a, "the total variance of class 0 must be at least the sum"),
    ("eigenvectors", lambda a: a[:, 1:], "eigenvectors must have shape"),
    (
        "eigenvectors",
        lambda a: 1.001 * a,
        "the eigenvectors of class 0 are not orthonormal \\(off by 0.002\\)",
    ),
    ("eigenvectors", lambda a: a[[0, 0, *range(2, len(a))]], "eigenvectors of class 0 are not orthonormal"),
    ("prototype_classes", lambda a: a - 1, "prototype classes and clients must count from 0"),
    ("prototype_clients", lambda a: a * 0, "a client must own at most one prototype of a class"),
    ("prototype_means", lambda a: a[1:], "prototype_means must have shape \\(5, 12\\)"),
]


@pytest.mark.parametrize(("name", "spoil", "expected"), BROKEN)
def test_a_broken_message_is_refused_by_name(
    name: str, spoil: Callable[[np.ndarray], np.ndarray], expected: str
) -> None:
    arrays = message()
    arrays[name] = spoil(arrays[name])
    with pytest.raises(FedgeoError, match=f"^server: .*{expected}"):
        Geometry.from_arrays(arrays, origin="server")


def test_a_fault_names_the_class() -> None:
    arrays = clients()[5].to_arrays()
    stats = ClassStatistics(**{**arrays, "triangles": -arrays["triangles"]})
    with pytest.raises(FedgeoError, match="^class 3: the covariance is not positive semidefinite"):
        geometry(stats)
    with pytest.raises(FedgeoError, match="prototypes have dimension 3, the merged statistics 12"):
        geometry(clients()[5], prototypes={0: gather(np.eye(3), np.arange(3))})
