"""Class statistics: merged is pooled, packed is the same, bad input is named."""

import dataclasses
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import FedgeoError
from app.geometry.class_statistics import TRIANGLE, ClassStatistics, gather, merge


def pooled(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance (divisor n) in extended precision, where an offset costs nothing."""
    wide = x.astype(np.longdouble)
    mean = wide.mean(axis=0)
    centred = (wide - mean).astype(np.float64)
    return mean.astype(np.float64), np.einsum("ni,nj->ij", centred, centred, optimize=True) / len(x)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def split(x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> list[ClassStatistics]:
    return [gather(x[owner == k], y[owner == k]) for k in np.unique(owner)]


def assert_same(a: ClassStatistics, b: ClassStatistics, tolerance: float = 1e-11, scale: float = 1.0) -> None:
    np.testing.assert_array_equal(a.classes, b.classes)
    np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_allclose(a.means, b.means, rtol=tolerance, atol=tolerance * scale)
    for row in range(len(a)):
        np.testing.assert_allclose(a.covariance(row), b.covariance(row), rtol=0, atol=tolerance * scale**2)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("n", [10, 200, 1500])
def test_merge_equals_the_pooled_covariance_in_any_grouping(offset: float, n: int) -> None:
    rng = np.random.default_rng(n)
    x = offset + 0.1 * rng.standard_normal((n, 512))
    owner = np.arange(n) % 10  # n = 10: one sample a client
    mean, covariance = pooled(x)
    parts = split(x, np.zeros(n, dtype=int), owner)
    nested = merge([merge(parts[:3]), parts[3], merge([merge(parts[4:8]), merge(parts[8:])])])
    pairs = merge([merge(parts[k : k + 2]) for k in range(0, 10, 2)])
    for merged in (merge(parts), merge(parts[::-1]), nested, pairs):
        assert merged.counts.tolist() == [n]
        assert error(merged.covariance(0), covariance) < 1e-12
        assert error(merged.means[0], mean) < 1e-14


def test_float32_sums_would_fail_where_the_merge_holds() -> None:
    rng = np.random.default_rng(0)
    x = (1e3 + 0.1 * rng.standard_normal((400, 16))).astype(np.float32)
    _, covariance = pooled(x)
    sums = (x.T @ x) / len(x) - np.outer(x.mean(axis=0), x.mean(axis=0))
    assert error(sums, covariance) > 0.1
    merged = merge(split(x, np.zeros(400, dtype=int), np.arange(400) % 7))
    assert error(merged.covariance(0), covariance) < 1e-12


def test_each_class_is_merged_from_those_who_hold_it() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((90, 8)), np.repeat([2, 5, 7], 30)
    owner = np.where(y == 7, 0, np.arange(90) % 4)  # class 7 at client 0 alone
    parts = split(x, y, owner)
    assert parts[1].classes.tolist() == [2, 5]
    merged = merge(parts)
    assert merged.classes.tolist() == [2, 5, 7]
    assert merged.row_of(5) == 1 and merged.row_of(3) is None and merged.row_of(9) is None
    for row, label in enumerate(merged.classes):
        expected = np.cov(x[y == label], rowvar=False, bias=True)
        np.testing.assert_allclose(merged.covariance(row), expected, atol=1e-13)


def test_order_of_the_parts_changes_no_bit() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((300, 12)), rng.integers(0, 3, 300)
    parts = split(x, y, rng.integers(0, 6, 300))
    first = merge(parts).to_arrays()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(parts))
        for name, array in merge([parts[i] for i in order]).to_arrays().items():
            np.testing.assert_array_equal(array, first[name])


def test_within_leaves_out_the_scatter_of_the_means() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((40, 6)), 5 + rng.standard_normal((60, 6))
    parts = [gather(a, np.zeros(40, dtype=int)), gather(b, np.zeros(60, dtype=int))]
    within = 0.4 * np.cov(a, rowvar=False, bias=True) + 0.6 * np.cov(b, rowvar=False, bias=True)
    np.testing.assert_allclose(merge(parts, between=False).covariance(0), within, atol=1e-13)
    gap = a.mean(axis=0) - b.mean(axis=0)
    total = within + 0.24 * np.outer(gap, gap)
    np.testing.assert_allclose(merge(parts).covariance(0), total, atol=1e-12)


def test_within_of_few_samples() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 32))
    parts = [gather(x[:3], np.zeros(3, dtype=int)), gather(x[3:], np.zeros(3, dtype=int))]
    merged = merge(parts, between=False)
    expected = sum(np.cov(half, rowvar=False, bias=True) for half in (x[:3], x[3:])) / 2
    assert merged.ranks.tolist() == [4]
    np.testing.assert_allclose(merged.covariance(0), expected, atol=1e-14)


laws = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(
    seed=laws,
    p=st.integers(1, 12),
    clients=st.integers(1, 5),
    n=st.integers(1, 40),
    offset=st.sampled_from([0, 100]),
)
def test_merging_is_associative_order_free_and_pooling(seed: int, p: int, clients: int, n: int, offset: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = offset + rng.standard_normal((n, p)), rng.integers(0, 3, n)
    parts = split(x, y, rng.integers(0, clients, n))
    whole = gather(x, y)
    assert_same(merge(parts), whole, scale=1 + offset)
    assert_same(merge(rng.permutation(np.array(parts, dtype=object)).tolist()), whole, scale=1 + offset)
    cut = int(rng.integers(0, len(parts)))
    halves = [merge(half) for half in (parts[:cut], parts[cut:]) if half]
    assert_same(merge(halves), whole, scale=1 + offset)


def test_few_samples_are_a_factor_that_is_not_the_samples() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((30, 16)), np.repeat([0, 1, 2, 3], [1, 7, 8, 14])
    stats = gather(x, y)
    assert stats.ranks.tolist() == [0, 6, TRIANGLE, TRIANGLE]  # a factor below p/2 = 8 samples
    np.testing.assert_array_equal(stats.covariance(0), np.zeros((16, 16)))
    for row in range(1, 4):
        covariance = stats.covariance(row)
        np.testing.assert_array_equal(covariance, covariance.T)
        np.testing.assert_allclose(covariance, np.cov(x[y == row], rowvar=False, bias=True), atol=1e-14)
    factor = stats.factor(1)
    assert factor is not None and stats.triangle(1) is None
    gram = factor @ factor.T
    np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-13)  # orthogonal, as eigenvectors are
    centred = x[y == 1] - x[y == 1].mean(axis=0)
    cosines = (factor @ centred.T) / np.outer(np.linalg.norm(factor, axis=1), np.linalg.norm(centred, axis=1))
    assert np.abs(cosines).max() < 0.999


def test_a_triangle_of_few_samples_merges_with_a_factor() -> None:
    rng = np.random.default_rng(10)
    x = rng.standard_normal((4, 16))
    first, second = gather(x[:2], np.zeros(2, dtype=int)), gather(x[2:], np.zeros(2, dtype=int))
    upper = first.covariance(0)[np.triu_indices(16)]
    ranks = np.array([TRIANGLE])
    held = dataclasses.replace(first, ranks=ranks, triangles=upper[None], factors=np.empty((0, 16)))
    merged = merge([held, second])
    assert merged.ranks.tolist() == [TRIANGLE]
    np.testing.assert_allclose(merged.covariance(0), np.cov(x, rowvar=False, bias=True), atol=1e-14)


def test_many_factors_are_not_stacked_all_at_once() -> None:
    x = np.random.default_rng(11).standard_normal((6000, 128))
    parts = [gather(part, np.zeros(60, dtype=int)) for part in np.split(x, 100)]
    stacked = sum(part.factors.nbytes for part in parts)
    tracemalloc.start()
    merged = merge(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < stacked / 4
    np.testing.assert_allclose(merged.covariance(0), np.cov(x, rowvar=False, bias=True), atol=1e-12)


def test_equal_samples_have_no_covariance_at_all() -> None:
    x = np.full((9, 40), 0.1)
    stats = merge([gather(x[:3], np.zeros(3, dtype=int)), gather(x[3:], np.zeros(6, dtype=int))])
    assert stats.ranks.tolist() == [0]
    np.testing.assert_array_equal(stats.means[0], x[0])


def test_statistics_of_no_class_change_nothing() -> None:
    x, y = np.eye(6), np.array([0, 0, 0, 1, 1, 4])
    empty = gather(x[:0], y[:0])
    assert len(empty) == 0 and empty.dimension == 6
    assert merge([empty, gather(x, y)]).classes.tolist() == [0, 1, 4]
    assert len(merge([empty, empty])) == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
def test_any_real_type_is_gathered_in_float64(dtype: str) -> None:
    x = np.random.default_rng(6).integers(0, 200, (50, 4)).astype(dtype)
    stats = gather(x, np.zeros(50, dtype=np.int32))
    np.testing.assert_allclose(stats.covariance(0), np.cov(x.astype(float), rowvar=False, bias=True), rtol=1e-12)
    assert stats.means.dtype == np.float64


def test_arrays_bring_back_the_same_statistics() -> None:
    rng = np.random.default_rng(7)
    stats = gather(rng.standard_normal((60, 16)), np.repeat([0, 3, 4], [5, 50, 5]))
    back = ClassStatistics.from_arrays(stats.to_arrays())
    for name, array in stats.to_arrays().items():
        np.testing.assert_array_equal(getattr(back, name), array)
    short = ClassStatistics.from_arrays(stats.to_arrays("float32"))
    assert short.triangles.dtype == short.factors.dtype == np.float32
    for row in range(3):
        assert short.covariance(row).dtype == np.float64
        assert 0 < error(short.covariance(row), stats.covariance(row)) < 1e-6
    assert error(merge([short, short]).covariance(1), stats.covariance(1)) < 1e-6


def test_packed_float32_is_at_most_026_of_dense_float64() -> None:
    x = np.random.default_rng(8).standard_normal((25_600, 512), dtype=np.float32)
    stats = gather(x, np.arange(25_600) % 100)  # 256 a class, the fewest that need a triangle
    assert (stats.ranks == TRIANGLE).all()
    packed = sum(array.nbytes for array in stats.to_arrays("float32").values())
    assert packed / (100 * 512 * 512 * 8) <= 0.26
    few = gather(x[:20_000], np.arange(20_000) % 100)
    assert sum(array.nbytes for array in few.to_arrays("float32").values()) < packed


def message() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    return gather(rng.standard_normal((30, 8)), np.repeat([0, 1], [3, 27])).to_arrays()


BROKEN: list[tuple[str, Callable[[np.ndarray], np.ndarray], str]] = [
    ("classes", lambda a: a[::-1], "classes must ascend"),
    ("classes", lambda a: a - 1, "classes must count from 0"),
    ("classes", lambda a: a.astype(np.int32), "classes must be int64"),
    ("counts", lambda a: a - 3, "counts must be at least 1"),
    ("counts", lambda a: a[:1], "counts must have shape \\(2\\)"),
    ("means", lambda a: a * np.nan, "means holds NaN"),
    ("means", lambda a: a[:, :0], "means must have at least one column"),
    ("means", lambda a: a.astype(np.float16), "means must be float64 or float32"),
    ("ranks", lambda a: a + 9, "ranks must lie between -1 and 8"),
    ("ranks", lambda a: a - 1, "ranks must lie"),
    ("triangles", lambda a: a[:, 1:], "triangles must have shape \\(1, 36\\)"),
    ("triangles", lambda a: a * np.inf, "triangles holds NaN or infinity"),
    ("factors", lambda a: a[1:], "factors must have shape \\(2, 8\\)"),
]


@pytest.mark.parametrize(("name", "spoil", "expected"), BROKEN)
def test_a_broken_message_is_refused_by_name(
    name: str, spoil: Callable[[np.ndarray], np.ndarray], expected: str
) -> None:
    arrays = message()
    arrays[name] = spoil(arrays[name])
    with np.errstate(invalid="ignore"), pytest.raises(FedgeoError, match=f"^client 3: {expected}"):
        ClassStatistics.from_arrays(arrays, origin="client 3")


def test_a_missing_array_is_named() -> None:
    arrays = message()
    del arrays["factors"]
    with pytest.raises(FedgeoError, match="'factors' is missing"):
        ClassStatistics.from_arrays(arrays)


def test_bad_input_is_refused_by_row_and_class() -> None:
    x, y = np.zeros((5, 3)), np.array([0, 0, 1, 1, 1])
    for value in (np.nan, np.inf):
        broken = x.copy()
        broken[3, 1] = value
        with pytest.raises(FedgeoError, match="row 3 \\(class 1\\) holds NaN or infinity"):
            gather(broken, y)
    with pytest.raises(FedgeoError, match="row 2 has label -1"):
        gather(x, np.array([0, 0, -1, 1, 1]))
    with pytest.raises(FedgeoError, match="embeddings must be real numbers of shape"):
        gather(x[0], y)
    with pytest.raises(FedgeoError, match="labels must be integers of shape \\(5,\\)"):
        gather(x, y[:4])
    with pytest.raises(FedgeoError, match="labels must be integers"):
        gather(x, y.astype(float))


def test_what_cannot_be_merged_or_sent_is_refused() -> None:
    a, b = gather(np.eye(3), np.arange(3)), gather(np.eye(4), np.arange(4))
    with pytest.raises(FedgeoError, match="statistics 1 are of dimension 4, the first of 3"):
        merge([a, b])
    with pytest.raises(FedgeoError, match="no class statistics to merge"):
        merge([])
    with pytest.raises(FedgeoError, match="float64 or float32, not 'float16'"):
        a.to_arrays("float16")
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.counts = a.classes  # type: ignore[misc]
