"""Splits and partitions: nothing is lost, shared or left to chance."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import FedgeoError
from app.data.partition import KINDS, partition, split, subsample
from app.data.source import TEST, TRAIN, UNSET, VAL, Source
from tests.sources import make_source, random_source, same


def cell_sizes(source: Source, rows: np.ndarray) -> np.ndarray:
    table = np.zeros((len(source.domains), len(source.classes)), dtype=int)
    for row in rows:
        table[source.domain[row], source.labels[row]] += 1
    return table


# split


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    test_fraction=st.floats(0, 0.6),
    val_fraction=st.floats(0, 0.39),
    seed=st.integers(0, 5),
)
def test_split_covers_all_rows_once_and_keeps_training_rows_in_every_cell(
    sizes: list[int], test_fraction: float, val_fraction: float, seed: int
) -> None:
    sizes[-1] = max(sizes[-1], 3)  # the last class and domain exist
    cells = np.repeat(np.arange(6), sizes)
    source = make_source(cells % 3, cells // 3)
    parts = split(source, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([parts.train, parts.val, parts.test])), np.arange(len(source)))
    n, train, val, test = (
        cell_sizes(source, rows).ravel() for rows in (np.arange(len(source)), parts.train, parts.val, parts.test)
    )
    assert (train[n > 0] >= 1).all()
    assert (test[n >= 3] >= (test_fraction > 0)).all()
    assert (val[n >= 3] >= (val_fraction > 0)).all()
    for part, fraction in ((test, test_fraction), (val, val_fraction)):
        assert (part <= np.maximum(fraction * n + 0.5, fraction > 0)).all()


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (10, (7, 1, 2)), (100, (70, 10, 20))],
)
def test_sizes_of_the_parts_of_one_cell(n: int, expected: tuple[int, int, int]) -> None:
    parts = split(make_source(np.zeros(n)), test_fraction=0.2, val_fraction=0.1, seed=0)
    assert (len(parts.train), len(parts.val), len(parts.test)) == expected


def test_split_is_stratified_75_10_15_as_the_eeg_paper_has_it() -> None:
    source = make_source(np.repeat([0, 1], [200, 400]))
    parts = split(source, test_fraction=0.15, val_fraction=0.10, seed=0)
    assert cell_sizes(source, parts.train).tolist() == [[150, 300]]
    assert cell_sizes(source, parts.val).tolist() == [[20, 40]]
    assert cell_sizes(source, parts.test).tolist() == [[30, 60]]


def test_official_parts_are_kept_and_missing_ones_are_drawn_domain_by_domain() -> None:
    # Domain 0 has an official test set, domain 1 a validation set, domain 2 both, domain 3 neither.
    domain = np.repeat(np.arange(4), 100)
    role = np.full(400, TRAIN)
    role[60:100] = TEST
    role[180:200] = VAL
    role[280:290], role[290:300] = VAL, TEST
    role[300:] = UNSET
    source = make_source(np.tile([0, 1], 200), domain, role)
    parts = split(source, test_fraction=0.2, val_fraction=0.1, seed=0)
    assert {*range(60, 100), *range(290, 300)} <= set(parts.test)
    assert {*range(180, 200), *range(280, 290)} <= set(parts.val)
    assert cell_sizes(source, parts.test).sum(1).tolist() == [40, 16, 10, 20]
    assert cell_sizes(source, parts.val).sum(1).tolist() == [6, 20, 10, 10]
    assert cell_sizes(source, parts.train).sum(1).tolist() == [54, 64, 80, 70]


def test_split_repeats_with_its_seed_and_changes_with_another() -> None:
    source = random_source(300, 5, 2)
    first, again, other = (split(source, test_fraction=0.2, val_fraction=0.1, seed=s) for s in (3, 3, 4))
    assert np.array_equal(first.test, again.test) and np.array_equal(first.val, again.val)
    assert not np.array_equal(first.test, other.test)


@pytest.mark.parametrize(("test", "val"), [(-0.1, 0.1), (1.0, 0.0), (0.2, 1.5), (0.6, 0.4), (float("nan"), 0.1)])
def test_split_refuses_fractions_by_name(test: float, val: float) -> None:
    with pytest.raises(FedgeoError, match=r"data\.(test|val)_fraction=.*allowed"):
        split(random_source(30, 3, 1), test_fraction=test, val_fraction=val, seed=0)


def test_split_refuses_data_without_training_rows() -> None:
    with pytest.raises(FedgeoError, match="no training rows"):
        split(make_source(np.zeros(5), parts=np.full(5, TEST)), test_fraction=0, val_fraction=0, seed=0)


# subsample


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=6, max_size=6),
    fraction=st.floats(0.01, 1),
    seed=st.integers(0, 5),
)
def test_subsample_takes_the_share_of_every_domain_and_class(sizes: list[int], fraction: float, seed: int) -> None:
    sizes[-1] = max(sizes[-1], 1)
    cells = np.repeat(np.arange(6), sizes)
    source = make_source(cells % 3, cells // 3)
    rows = np.flatnonzero(np.arange(len(source)) % 3 != 1)
    kept = subsample(rows, source.labels, source.domain, fraction, seed)
    assert set(kept) <= set(rows) and np.array_equal(kept, np.unique(kept))
    before, after = cell_sizes(source, rows), cell_sizes(source, kept)
    assert (np.abs(after - fraction * before)[after > 1] <= 0.5 + 1e-9).all()
    assert ((after >= 1) == (before >= 1)).all()


def test_a_tenth_of_each_digits_domain_and_the_whole_at_fraction_one() -> None:
    source = make_source(np.tile(np.arange(10), 300), np.repeat([0, 1], [1000, 2000]))
    rows = np.arange(len(source))
    tenth = subsample(rows, source.labels, source.domain, 0.1, 0)
    assert cell_sizes(source, tenth).tolist() == [[10] * 10, [20] * 10]
    assert not np.array_equal(tenth, subsample(rows, source.labels, source.domain, 0.1, 1))
    assert np.array_equal(subsample(rows, source.labels, source.domain, 1.0, 0), rows)
    assert len(subsample(rows[:0], source.labels, source.domain, 0.1, 0)) == 0
    with pytest.raises(FedgeoError, match=r"federation\.fraction=0"):
        subsample(rows, source.labels, source.domain, 0, 0)


# partition: laws


@settings(max_examples=120)
@given(
    kind=st.sampled_from(KINDS),
    clients=st.none() | st.integers(3, 25),
    beta=st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0]),
    min_per_client=st.integers(1, 6),
    min_per_class=st.integers(0, 1),
    seed=st.integers(0, 3),
)
def test_partition_laws(
    kind: str, clients: int | None, beta: float, min_per_client: int, min_per_class: int, seed: int
) -> None:
    source = random_source(600, 4, 3)
    rows = np.flatnonzero(np.arange(600) % 4 != 1)
    options: dict[str, Any] = {
        "kind": kind,
        "clients": clients,
        "beta": beta,
        "min_per_client": min_per_client,
        "min_per_class": min_per_class if kind.endswith("dirichlet") else 0,
    }
    made = partition(source, rows, seed=seed, **options)

    assert len(made) == (3 if clients is None else clients)
    held = np.concatenate(made.clients)
    assert len(np.unique(held)) == len(held) and np.isin(held, rows).all()
    if kind != "domain_dirichlet":
        assert len(held) == len(rows)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in made.clients)
    counts = made.counts(source.labels, 4)
    assert counts.sum(1).min() >= min_per_client and counts.min() >= options["min_per_class"]
    for part, name in zip(made.clients, made.domains, strict=True):
        found = set(source.domain[part])
        assert name == (source.domains[found.pop()] if len(found) == 1 else None)
    if kind.startswith("domain"):
        assert list(made.domains) == sorted(map(str, made.domains)) and set(made.domains) == set(source.domains)
    assert same(made, partition(source, rows[::-1], seed=seed, **options))
    if kind != "domain" or len(made) > 3:
        assert not same(made, partition(source, rows, seed=seed + 1, **options))


def test_iid_and_domain_are_even() -> None:
    source = random_source(103, 5, 3)
    rows = np.arange(103)
    iid = partition(source, rows, kind="iid", clients=10, seed=0)
    assert sorted(map(len, iid.clients)) == [10] * 7 + [11] * 3
    shared = partition(source, rows, kind="domain", clients=7, seed=0)
    assert shared.domains == ("domain0",) * 3 + ("domain1",) * 2 + ("domain2",) * 2
    assert [len(part) for part in shared.clients] == [12, 12, 11, 17, 17, 17, 17]
    by_domain = partition(source, rows, kind="domain", seed=0)
    for d, part in enumerate(by_domain.clients):
        assert np.array_equal(part, np.flatnonzero(source.domain == d))
    twice = partition(source, rows, kind="domain", clients_per_domain=2, seed=0)
    assert twice.domains == ("domain0", "domain0", "domain1", "domain1", "domain2", "domain2")


def test_domains_without_training_rows_get_no_client() -> None:
    source = random_source(90, 3, 3)
    rows = np.flatnonzero(source.domain != 1)
    assert partition(source, rows, kind="domain", seed=0).domains == ("domain0", "domain2")


# partition: the distributions


def test_dirichlet_shares_have_the_moments_of_the_law() -> None:
    """Each client's share of a class has mean 1/K and variance (1/K)(1 - 1/K) / (K beta + 1)."""
    clients, beta = 5, 0.5
    source = make_source(np.repeat(np.arange(200), 400))
    made = partition(source, np.arange(len(source)), kind="dirichlet", clients=clients, beta=beta, seed=0)
    shares = made.counts(source.labels, 200) / 400
    variance = (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert np.allclose(shares.sum(0), 1)
    assert np.allclose(shares.mean(1), 1 / clients, atol=5 * np.sqrt(variance / 200))
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_small_beta_skews_and_large_beta_evens_out() -> None:
    source = random_source(5000, 10, 1)

    def skew(beta: float) -> float:
        made = partition(source, np.arange(5000), kind="dirichlet", clients=10, beta=beta, seed=0)
        return float((made.counts(source.labels, 10) / 500).max(0).mean())

    assert skew(1e6) < 0.11 < skew(1.0) < skew(0.1) < skew(0.01)


def test_domain_dirichlet_keeps_the_coefficient_times_the_classes_of_its_own_domain() -> None:
    """As kept / available is the coefficient up to rounding, it sums to 1 over the clients of each class."""
    sizes = np.random.default_rng(0).integers(200, 400, size=(4, 65))
    cells = np.repeat(np.arange(4 * 65), sizes.ravel())
    source = make_source(cells % 65, cells // 65)
    made = partition(source, np.arange(len(source)), kind="domain_dirichlet", beta=0.1, seed=0)
    coefficients = made.counts(source.labels, 65) / sizes
    assert np.allclose(coefficients.sum(0), 1, atol=4 * 0.5 / 200)
    assert coefficients.var() == pytest.approx(0.25 * 0.75 / (4 * 0.1 + 1), rel=0.25)
    assert made.domains == source.domains


def test_several_clients_of_one_domain_share_it_without_overlap() -> None:
    source = random_source(4000, 5, 2)
    made = partition(source, np.arange(4000), kind="domain_dirichlet", clients_per_domain=3, beta=0.5, seed=0)
    assert made.domains == ("domain0",) * 3 + ("domain1",) * 3
    available = cell_sizes(source, np.arange(4000))
    kept = made.counts(source.labels, 5)
    used = np.stack([kept[:3].sum(0), kept[3:].sum(0)])
    assert np.allclose((used / available).sum(0), 1, atol=2 * 0.5 / available.min())


def test_minimum_a_class_is_given_before_the_draw() -> None:
    source = random_source(1000, 10, 1)
    without = partition(source, np.arange(1000), kind="dirichlet", clients=20, beta=0.01, seed=0)
    given_two = partition(source, np.arange(1000), kind="dirichlet", clients=20, beta=0.01, min_per_class=2, seed=0)
    assert (without.counts(source.labels, 10) == 0).mean() > 0.5
    assert given_two.counts(source.labels, 10).min() == 2
    assert sum(map(len, given_two.clients)) == 1000


def test_extreme_skew_over_500_clients_is_repaired_to_the_minimum() -> None:
    source = random_source(50_000, 10, 1)
    for beta, least in itertools.product((1e-8, 0.1), (1, 100)):
        made = partition(
            source, np.arange(50_000), kind="dirichlet", clients=500, beta=beta, min_per_client=least, seed=0
        )
        sizes = np.array([len(part) for part in made.clients])
        assert sizes.sum() == 50_000 and sizes.min() == least
    assert (sizes == 100).all()  # the minimum uses up every row


@pytest.mark.parametrize("seed", range(5))
def test_repair_to_equal_parts_keeps_the_minimum_a_class(seed: int) -> None:
    source = random_source(240, 20, 1)
    made = partition(
        source,
        np.arange(240),
        kind="dirichlet",
        clients=4,
        beta=1e-3,
        min_per_client=60,
        min_per_class=2,
        seed=seed,
    )
    counts = made.counts(source.labels, 20)
    assert (counts.sum(1) == 60).all() and counts.min() == 2


def test_repair_prefers_unused_rows_of_the_own_domain() -> None:
    """With nearly all of a coefficient column on one client, the others keep nothing but the repair."""
    source = make_source(np.zeros(400), np.repeat(np.arange(4), 100))
    made = partition(source, np.arange(400), kind="domain_dirichlet", beta=1e-8, min_per_client=7, seed=0)
    assert sorted(map(len, made.clients)) == [7, 7, 7, 100]
    assert made.domains == source.domains


# partition: refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "shards"}, r"federation\.partition=shards: allowed are iid, dirichlet"),
        ({"kind": "dirichlet"}, r"federation\.beta=None"),
        ({"kind": "dirichlet", "beta": 0.0}, r"federation\.beta=0.0"),
        ({"kind": "dirichlet", "beta": float("inf")}, r"federation\.beta=inf"),
        ({"kind": "domain_dirichlet", "beta": float("nan")}, r"federation\.beta=nan"),
        ({"kind": "iid", "clients": 61}, r"federation\.clients: 61 clients share the 60 .* at most 60"),
        ({"kind": "iid", "clients": 13, "min_per_client": 5}, r"min_per_client=5; allowed are at most 12"),
        (
            {"kind": "domain", "clients": 2},
            r"clients=2: .* domain2\); allowed are null or at least 3",
        ),
        ({"kind": "domain", "clients": 61}, r"training samples of domain domain0"),
        ({"kind": "domain", "clients": 7, "clients_per_domain": 2}, r"disagree over 3 domains"),
        ({"kind": "iid", "clients": 0}, r"federation\.clients=0"),
        ({"kind": "iid", "min_per_client": 0}, r"federation\.min_per_client=0: allowed are integers from 1"),
        ({"kind": "iid", "min_per_class": 1}, r"federation\.min_per_class=1: .*allows 0 only"),
        (
            {"kind": "dirichlet", "beta": 1.0, "clients": 8, "min_per_class": 2},
            r"min_per_class=2: 8 clients share the 15 .* of class class0 in trial; allowed are at most 1",
        ),
    ],
)
def test_partition_refuses_what_it_cannot_do(options: dict, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        partition(random_source(60, 4, 3), np.arange(60), seed=0, **options)


def test_partition_refuses_no_rows() -> None:
    with pytest.raises(FedgeoError, match="no training samples"):
        partition(random_source(60, 4, 3), np.arange(0), kind="iid", clients=2, seed=0)


def test_pacs_as_in_office_home_lds(test_data: Path) -> None:
    """Real counts: every client one domain, labels skewed, and the unused rest reported by the counts."""
    with np.load(test_data / "features" / "pacs_efflite0.npz") as file:
        labels = {name.removesuffix("_y"): file[name] for name in file.files if name.endswith("_y")}
    domains = sorted(labels)
    source = make_source(
        np.concatenate([labels[d] for d in domains]), np.repeat(range(4), [len(labels[d]) for d in domains])
    )
    assert len(source) == 9991
    parts = split(source, test_fraction=0.3, val_fraction=0.1, seed=0)
    rows = subsample(parts.train, source.labels, source.domain, 0.3, 0)
    assert len(rows) == pytest.approx(9991 * 0.6 * 0.3, abs=20)
    made = partition(source, parts.train, kind="domain_dirichlet", beta=0.1, seed=0)
    counts, available = made.counts(source.labels, 7), cell_sizes(source, parts.train)
    assert (counts <= available).all() and counts.sum(1).min() > 0
    assert np.allclose((counts / available).sum(0), 1, atol=0.1)
