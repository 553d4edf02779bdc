"""augmentation=shift: where samples land, how many there are, and what is shared for it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.equal_steps import planned_counts
from app.augmentation.sources import Filling
from app.common.errors import FedgeoError
from app.config.compose import load
from app.geometry.class_geometry import Geometry, geometry
from app.geometry.class_statistics import ClassStatistics, gather, merge
from app.geometry.domain_shift import Transfer, check_shift, transfer
from tests.augmented import augmented_set, expected_rms

P, CLASSES, DOMAINS = 5, 4, 3
NAMES = ("a", "a", "b", "c")  # the domain of each client
HOMES = np.array([0, 0, 1, 2])
HELD = {0: {0: 12, 1: 7}, 1: {0: 4}, 2: {0: 9, 1: 5, 2: 8}, 3: {1: 6, 2: 10, 3: 3}}

_rng = np.random.default_rng(0)
CENTRES, DELTAS = 3 * _rng.standard_normal((CLASSES, P)), _rng.standard_normal((DOMAINS, P))


def site(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples whose class means are m_c + delta_d exactly (float64)."""
    rng = np.random.default_rng(10 + client)
    y = np.repeat(list(HELD[client]), list(HELD[client].values()))
    noise = rng.standard_normal((len(y), P))
    for label in HELD[client]:
        noise[y == label] -= noise[y == label].mean(0)
    return CENTRES[y] + DELTAS[HOMES[client]] + noise, y


def parts(covariances: bool = False) -> dict[int, ClassStatistics]:
    return {client: gather(*site(client), covariances=covariances) for client in HELD}


def shared(noise: bool = False) -> Transfer:
    shapes = merge(parts(covariances=True).values()) if noise else None
    return transfer(parts(), HOMES, shapes=shapes, explained=1.0, prototypes=True)


def augmented(
    client: int, known: Transfer | Geometry | None = None, seed: int = 3, kind: str = "shift", **changes: Any
) -> AugmentedSet:
    x, y = site(client)
    return augmented_set(
        kind,
        x.astype(np.float32),
        y,
        shared(changes.get("noise", False)) if known is None else known,
        classes=CLASSES,
        seed=seed,
        client=client,
        own={k for k in HELD if HOMES[k] == HOMES[client]},
        **{"target": 40, **changes},
    )


def drawn(data: AugmentedSet, label: int) -> np.ndarray:
    """The drawn samples of a class, in block order."""
    x, y = data.materialise()
    real = len(data) - data.added
    return x[real:][y[real:] == label].numpy()


def nearest(rows: np.ndarray, own: np.ndarray, home: int) -> np.ndarray:
    """For each row: the domain d' and the distance at which it is an own sample moved by the TRUE shift, (n, 2)."""
    moved = own[None] + (DELTAS - DELTAS[home])[:, None]  # (D, n, p)
    gaps = np.linalg.norm(rows[:, None, None] - moved[None], axis=-1).min(axis=2)
    return np.stack([gaps.argmin(1), gaps.min(1)], axis=1)


@pytest.mark.parametrize("client", [0, 2, 3])
def test_translated_samples_land_exactly_in_the_other_domains_evenly(client: int) -> None:
    x, y = site(client)
    data, home = augmented(client), int(HOMES[client])
    for label, count in HELD[client].items():
        found = nearest(drawn(data, label), x[y == label], home)
        assert found[:, 1].max() < 2e-3  # what the small ridge on the deltas leaves of a distance of several units
        landed = np.bincount(found[:, 0].astype(int), minlength=DOMAINS)
        assert landed[home] == 0 and landed.sum() == 40 - count
        others = np.delete(landed, home)
        assert others.max() - others.min() <= 1


def test_every_own_sample_is_translated_about_as_often_as_every_other() -> None:
    x, y = site(0)
    rows = drawn(augmented(0, target=60), 0)
    transferred = shared()
    moved = x[y == 0][:, None] + (transferred.deltas - transferred.deltas[0])[1:]  # (12, 2, p)
    gaps = np.linalg.norm(rows[:, None, None] - moved[None], axis=-1)
    uses = np.bincount(gaps.reshape(len(rows), -1).argmin(1), minlength=24)
    assert uses.sum() == 48 and uses.min() == uses.max() == 2


def test_an_absent_class_is_anchored_at_its_centre_in_every_domain() -> None:
    rows = drawn(augmented(0), 3)  # held by client 3 alone, in domain 2
    anchors, counts = np.unique(rows.round(3), axis=0, return_counts=True)
    assert sorted(counts.tolist()) == [13, 13, 14]
    expected = CENTRES[3] + DELTAS
    gaps = np.linalg.norm(anchors[:, None] - expected[None], axis=-1)
    assert sorted(gaps.argmin(1).tolist()) == [0, 1, 2] and gaps.min(1).max() < 5e-3
    assert not len(drawn(augmented(0, absent="skip"), 3))


def test_step_two_translates_into_the_prototypes_domain_and_falls_back_on_the_prototype() -> None:
    x, y = site(0)
    plain, more = augmented(0), augmented(0, step2=True, per_prototype=6)
    auxiliary = drawn(more, 0)[len(drawn(plain, 0)) :]  # class 0: client 2 of domain 1 holds it too
    found = nearest(auxiliary, x[y == 0], 0)
    assert len(auxiliary) == 6 and set(found[:, 0]) == {1.0} and found[:, 1].max() < 2e-3
    lent = drawn(more, 3)[len(drawn(plain, 3)) :]  # not held: client 3's mean
    other, labels = site(3)
    np.testing.assert_allclose(lent, np.tile(other[labels == 3].mean(0), (6, 1)), rtol=1e-5)


@settings(max_examples=30)
@given(
    client=st.sampled_from(sorted(HELD)),
    target=st.integers(1, 50),
    absent=st.sampled_from(["global_mean", "skip"]),
    step2=st.booleans(),
    noise=st.booleans(),
)
def test_counts_are_those_of_repeat_and_of_the_plan(
    client: int, target: int, absent: str, step2: bool, noise: bool
) -> None:
    chosen = {"target": target, "absent": absent, "step2": step2, "per_prototype": 3}
    control = geometry(merge(parts(covariances=True).values()), prototypes=parts(covariances=True))
    repeat = augmented(client, control, kind="repeat", **chosen)
    moved = augmented(client, noise=noise, **chosen)
    np.testing.assert_array_equal(moved.counts, repeat.counts)
    table = np.array([[HELD[k].get(c, 0) for c in range(CLASSES)] for k in HELD])
    planned = planned_counts(table, Filling(**chosen), NAMES)[client]
    np.testing.assert_array_equal(moved.counts, planned)


def test_without_noise_nothing_is_perturbed_and_with_it_the_spread_is_the_shapes() -> None:
    still, noisy = augmented(2), augmented(2, noise=True, target=4000)
    assert (still.perturbed, still.perturbation_rms, still.unshaped) == (0, 0.0, {})
    assert noisy.perturbed == noisy.added
    assert noisy.perturbation_rms == pytest.approx(expected_rms(noisy), rel=0.03)
    label = 0
    rows, anchors = drawn(noisy, label), drawn(augmented(2, target=4000), label)
    merged = merge(parts(covariances=True).values())
    np.testing.assert_allclose(np.cov((rows - anchors).T), merged.covariance(label), atol=0.25)


def test_the_set_follows_its_seed_and_not_the_order_of_reading() -> None:
    one, two, other = augmented(2, noise=True), augmented(2, noise=True), augmented(2, noise=True, seed=4)
    backwards = [two.block(i)[0] for i in reversed(range(len(two.sizes)))][::-1]
    for index, block in enumerate(backwards):
        assert bool((one.block(index)[0] == block).all())
    assert not bool((one.materialise()[0] == other.materialise()[0]).all())


def test_only_counts_and_means_are_read_of_the_clients_statistics() -> None:
    lean, full = transfer(parts(), HOMES), transfer(parts(covariances=True), HOMES)
    for name, value in lean.to_arrays().items():
        np.testing.assert_array_equal(value, full.to_arrays()[name])
    assert not lean.geometry.shapes[0].rank and not len(lean.geometry.prototype_means)


def test_what_is_sent_comes_back() -> None:
    sent = shared(noise=True)
    back = Transfer.from_arrays(sent.to_arrays())
    for name, value in sent.to_arrays().items():
        np.testing.assert_array_equal(back.to_arrays()[name], value)
    broken = {
        "at least two domains": {"deltas": sent.deltas[:1]},
        "rows of deltas": {"domains": np.array([0, 0, 1, 9])},
        "prototype's owner": {"domains": np.array([0, 0, 1, -1])},
        "deltas must have shape": {"deltas": sent.deltas[:, :2]},
    }
    for words, change in broken.items():
        with pytest.raises(FedgeoError, match=words):
            Transfer.from_arrays(sent.to_arrays() | change)


def test_one_domain_and_mixed_clients_are_refused_by_name() -> None:
    with pytest.raises(FedgeoError, match=r"all clients hold one domain \(photo\)"):
        check_shift(["photo", "photo"])
    with pytest.raises(FedgeoError, match="mixture of domains"):
        check_shift(["photo", None])
    with pytest.raises(FedgeoError, match="all clients hold one domain"):
        transfer(parts(), np.zeros(4, dtype=np.int64))
    with pytest.raises(FedgeoError, match="no client shared any class mean"):
        transfer({k: gather(np.empty((0, P)), np.empty(0, dtype=int)) for k in HELD}, HOMES)


def test_a_client_of_unknown_domain_cannot_be_augmented() -> None:
    known = shared()
    with pytest.raises(FedgeoError, match="client 3: .* does not know its domain"):
        augmented(3, Transfer(known.geometry, known.deltas, np.array([0, 0, 1, -1])))
    with pytest.raises(FedgeoError, match="needs the shifts of the domains"):
        augmented(3, known.geometry)


@pytest.mark.parametrize(
    ("overrides", "kind", "target"),
    [
        ((), "shift", 500),
        (("augmentation=repeat",), "repeat", 500),
        (("augmentation=ggeur", "augmentation.target=60"), "ggeur", 60),
        (("variant=paper",), "ggeur", 500),
        (("variant=gaussian",), "ggeur", 14),
    ],
)
def test_the_preset_with_both_skews_recommends_shift_and_gives_way_to_the_user(
    overrides: tuple[str, ...], kind: str, target: int
) -> None:
    chosen = load(("experiment=office_home_lds", *overrides)).augmentation
    assert (chosen.kind, chosen.target) == (kind, target)
