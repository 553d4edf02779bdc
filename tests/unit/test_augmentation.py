"""The augmented set: whose covariance it has, how many of each class, and that a seed fixes every byte."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.augmentation.augmented_set import BLOCK, AugmentedSet
from app.augmentation.sources import Filling
from app.common.errors import FedgeoError
from app.geometry.class_geometry import Geometry, Shape, geometry
from app.geometry.class_statistics import ClassStatistics, gather
from tests.augmented import CLASSES, P, X, Y, augmented, augmented_set, expected_rms, shared, site


def drawn(data: AugmentedSet, label: int) -> np.ndarray:
    """The drawn samples of a class, in block order (the real ones come first)."""
    x, y = data.materialise()
    real = len(data) - data.added
    return x[real:][y[real:] == label].numpy()


def centred_geometry(covariance: np.ndarray, explained: float = 1.0) -> Geometry:
    """One class round the origin with this covariance."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(min=0)) @ vectors.T
    p = len(covariance)
    samples = np.concatenate([root, -root]) * np.sqrt(p)
    return geometry(gather(samples, np.zeros(2 * p, dtype=int)), explained)


def round_origin(covariance: np.ndarray, target: int, explained: float = 1.0, **changes: Any) -> AugmentedSet:
    p = len(covariance)
    known = centred_geometry(covariance, explained)
    empty = np.empty((0, p), np.float32), np.empty(0, dtype=int)
    return augmented(*empty, geometry=known, target=target, classes=1, **changes)


# What is drawn


def test_sqrt_samples_have_the_class_covariance() -> None:
    n, covariance = 40_000, np.diag([4.0, 1.0, 0.25]) + 0.3
    x = round_origin(covariance, n).materialise()[0].double().numpy()
    # Entry ij of a Gaussian sample covariance deviates by sqrt((C_ii C_jj + C_ij^2) / n); five of these bound it.
    diagonal = covariance.diagonal()
    bound = 5 * np.sqrt((np.outer(diagonal, diagonal) + covariance**2) / n)
    assert (np.abs(x.T @ x / n - covariance) < bound).all()
    assert (np.abs(x.mean(axis=0)) < 5 * np.sqrt(diagonal / n)).all()
    fourth = (x**4).mean(axis=0) / (x**2).mean(axis=0) ** 2
    np.testing.assert_allclose(fourth, 3, atol=5 * np.sqrt(96 / n))  # Gaussian, not merely of that covariance


def test_lambda_samples_have_its_square() -> None:
    n, covariance = 40_000, np.diag([2.0, 0.5, 0.1]) + 0.05
    x = round_origin(covariance, n, scale="lambda").materialise()[0].double().numpy()
    expected = covariance @ covariance
    diagonal = expected.diagonal()
    assert (np.abs(x.T @ x / n - expected) < 5 * np.sqrt((np.outer(diagonal, diagonal) + expected**2) / n)).all()


def test_each_sample_is_its_anchor_and_a_perturbation_within_the_shape() -> None:
    known = shared()
    only = Shape(known.shapes[0].eigenvalues[:2], known.shapes[0].eigenvectors[:, :2], known.shapes[0].total_variance)
    flat = Geometry(**{**vars(known), "shapes": (only, *known.shapes[1:])})
    beta = drawn(augmented(geometry=flat), 0) - drawn(augmented(geometry=flat, kind="repeat"), 0)
    outside = beta - beta @ only.eigenvectors @ only.eigenvectors.T
    assert np.linalg.norm(beta, axis=1).min() > 1e-3
    assert np.abs(outside).max() < 1e-5


def test_perturbation_rms_is_the_root_of_the_trace() -> None:
    rng = np.random.default_rng(5)
    covariance = np.cov(rng.standard_normal((700, 64)) * np.geomspace(1, 0.05, 64), rowvar=False)
    root = float(np.sqrt(np.trace(covariance)))
    whole = round_origin(covariance, 3000)
    assert expected_rms(whole) == pytest.approx(root, rel=1e-9)
    assert whole.perturbation_rms == pytest.approx(root, rel=0.02)
    cut = round_origin(covariance, 3000, explained=0.95)
    assert np.sqrt(0.95) * root <= expected_rms(cut) < root
    assert cut.perturbation_rms == pytest.approx(expected_rms(cut), rel=0.02)
    narrow = round_origin(covariance, 3000, scale="lambda")
    assert narrow.perturbation_rms == pytest.approx(np.linalg.norm(covariance), rel=0.02)


def test_perturbation_rms_is_that_of_the_samples_and_counts_each_once() -> None:
    data = augmented(step2=True, per_prototype=300)
    data.block(len(data.sizes) - 1)
    list(data.batches(50, torch.Generator().manual_seed(1)))
    plain = augmented(step2=True, per_prototype=300, kind="repeat")
    beta = (data.materialise()[0] - plain.materialise()[0]).double()
    by_hand = float(torch.sqrt((beta**2).sum() / data.added))
    assert data.perturbation_rms == pytest.approx(by_hand, rel=1e-5)
    untouched = augmented(step2=True, per_prototype=300)
    assert untouched.perturbation_rms == data.perturbation_rms
    assert abs(data.perturbation_rms / expected_rms(data) - 1) < 0.1


def test_repeat_has_the_same_counts_and_no_perturbation() -> None:
    for changes in ({}, {"absent": "skip"}, {"step2": True}, {"step2": True, "absent": "skip"}):
        control, full = augmented(kind="repeat", **changes), augmented(**changes)
        np.testing.assert_array_equal(control.counts, full.counts)
        np.testing.assert_array_equal(control.sizes, full.sizes)
        assert torch.equal(control.materialise()[1], full.materialise()[1])
        assert control.perturbation_rms == 0 and control.unshaped == {}
        anchors = np.concatenate([X, shared().means, shared().prototype_means]).astype(np.float32)
        rows = {row.tobytes() for row in anchors}
        assert all(row.tobytes() in rows for row in control.materialise()[0].numpy())


def test_none_is_the_real_samples_alone() -> None:
    data = augmented(kind="none")
    x, y = data.materialise()
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert data.added == 0 and data.counts.tolist() == [30, 0, 301, 0] and data.perturbation_rms == 0
    assert data.sizes.tolist() == [256, 75]


def test_zero_eigenvalues_give_no_perturbation() -> None:
    alike = gather(np.repeat(np.eye(P), 2, axis=0)[:4], np.array([0, 0, 1, 1]))
    data = augmented(np.eye(P, dtype=np.float32)[:2], np.array([0, 1]), geometry=geometry(alike), target=300)
    for label in (0, 1):
        np.testing.assert_array_equal(drawn(data, label), np.tile(np.eye(P, dtype=np.float32)[label], (299, 1)))
    assert data.perturbation_rms == 0 and data.unshaped == {}


def test_negative_rounding_is_clipped() -> None:
    arrays = gather(np.random.default_rng(1).standard_normal((50, 3)), np.zeros(50, dtype=int)).to_arrays()
    arrays["triangles"] = np.array([[2.0, 0.0, 0.0, 1.0, 0.0, -1e-7]])
    known = geometry(ClassStatistics(**arrays), 1.0)
    data = augmented(np.zeros((1, 3), np.float32), np.zeros(1, dtype=int), geometry=known, classes=1)
    x = data.materialise()[0].numpy()
    assert np.isfinite(x).all() and (x[:, 2] == 0).all() and (x[1:, :2] != 0).all()


# How many


def test_targets_and_absent_classes() -> None:
    assert augmented().counts.tolist() == [400, 400, 400, 0]  # class 3 is nobody's
    assert augmented().added == 400 * 3 - 331 and len(augmented()) == 1200
    assert augmented(absent="skip").counts.tolist() == [400, 0, 400, 0]
    assert augmented(target=301).counts.tolist() == [301, 301, 301, 0]
    assert augmented(target=100).counts.tolist() == [100, 100, 301, 0]
    assert augmented(target=1, absent="skip").added == 0
    mean = augmented(kind="repeat")
    np.testing.assert_array_equal(drawn(mean, 1), np.tile(shared().means[1].astype(np.float32), (400, 1)))


@settings(max_examples=30)
@given(held=st.integers(1, 40), target=st.integers(1, 700))
def test_anchors_are_used_equally_but_for_a_spread_remainder(held: int, target: int) -> None:
    x, y = site({0: held, 2: 5})
    added = max(0, target - held)
    data = augmented(x, y, kind="repeat", target=target, absent="skip")
    samples = drawn(data, 0)
    assert len(samples) == added and data.counts[0] == max(held, target)
    order = {row.tobytes(): place for place, row in enumerate(x[y == 0])}
    used = np.array([order[row.tobytes()] for row in samples], dtype=int)
    times = np.bincount(used, minlength=held)
    assert set(times.tolist()) <= {added // held, -(-added // held)}
    assert (np.diff(used) >= 0).all()
    share = np.arange(1, held + 1) * added / held
    assert (np.abs(np.cumsum(times) - share) < 1).all()  # the remainder is spread, not given to the first


def test_step_two_adds_samples_round_each_foreign_prototype() -> None:
    known = shared()
    data = augmented(step2=True, per_prototype=300)
    assert data.counts.tolist() == [400 + 300, 400 + 600, 400 + 300, 0]
    skipped = augmented(step2=True, per_prototype=300, absent="skip")
    assert skipped.counts.tolist() == [700, 600, 700, 0]
    plain = augmented(step2=True, per_prototype=300, absent="skip", kind="repeat")
    owners = known.prototype_clients[known.prototype_classes == 1].tolist()
    assert owners == [1, 4]
    prototypes = known.prototype_means[known.prototype_classes == 1].astype(np.float32)
    np.testing.assert_array_equal(drawn(plain, 1), np.repeat(prototypes, 300, axis=0))
    beta = drawn(skipped, 1) - drawn(plain, 1)
    trace = float(known.shapes[1].eigenvalues.sum())
    assert np.mean((beta**2).sum(axis=1)) == pytest.approx(trace, rel=0.2)
    assert augmented(target=100, step2=True).counts.tolist() == [100 + 500, 100 + 1000, 301 + 500, 0]
    domain = augmented(step2=True, per_prototype=300, own={0, 1})  # two clients share the domain
    assert domain.counts.tolist() == [400, 700, 700, 0]
    nobody = augmented(step2=True, per_prototype=300, own=set())
    assert nobody.counts.tolist() == [1000, 1000, 1000, 0]


def test_a_class_without_a_shape_is_repeated_and_reported() -> None:
    known = shared()
    lacking = Geometry(
        **{**vars(known), "classes": known.classes[:2], "counts": known.counts[:2],
           "means": known.means[:2], "shapes": known.shapes[:2]}
    )  # fmt: skip
    data = augmented(geometry=lacking, step2=True, per_prototype=10)
    assert data.counts.tolist() == [410, 420, 410, 0]
    assert data.unshaped == {2: 99 + 10} and data.perturbed == data.added - 109
    plain = augmented(geometry=lacking, step2=True, per_prototype=10, kind="repeat")
    np.testing.assert_array_equal(drawn(data, 2), drawn(plain, 2))
    assert not np.array_equal(drawn(data, 0), drawn(plain, 0))
    shaped = np.concatenate([drawn(data, k) - drawn(plain, k) for k in (0, 1)]).astype(float)
    assert data.perturbation_rms == pytest.approx(np.sqrt((shaped**2).sum(axis=1).mean()), rel=1e-5)


# What a seed fixes


def test_the_same_seed_and_client_give_the_same_bytes() -> None:
    first = augmented(step2=True).materialise()[0]
    assert torch.equal(first, augmented(step2=True).materialise()[0])
    real = len(X)
    for changed in (augmented(step2=True, seed=8), augmented(step2=True, client=9, own={0})):
        other = changed.materialise()[0]
        assert torch.equal(other[:real], first[:real])
        assert (other[real:] != first[real:]).any(dim=1).all()


def test_blocks_read_in_any_order_are_equal() -> None:
    data, other = augmented(step2=True), augmented(step2=True)
    order = np.random.default_rng(0).permutation(len(data.sizes)).tolist()
    shuffled = {i: other.block(i) for i in order}
    for i in range(len(data.sizes)):
        x, y = data.block(i)
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        assert x.shape == (data.sizes[i], P) and y.shape == (data.sizes[i],)
        assert torch.equal(x, shuffled[i][0]) and torch.equal(y, shuffled[i][1])
        assert torch.equal(x, other.block(i)[0])


def test_noise_depends_on_the_block_and_not_on_the_target_or_the_other_prototypes() -> None:
    covariance = np.cov(np.random.default_rng(2).standard_normal((100, 64)), rowvar=False)
    long = round_origin(covariance, 900).materialise()[0]
    for target in (1, 257, 700):  # a last block of one row is a product of whole blocks too
        assert torch.equal(round_origin(covariance, target).materialise()[0], long[:target])
    one, two = (drawn(augmented(step2=True, absent="skip", own=own), 1)[-500:] for own in ({0}, {0, 1}))
    np.testing.assert_array_equal(one, two)


def test_no_class_source_or_block_shares_its_noise() -> None:
    known = shared()
    alike = Geometry(**{**vars(known), "shapes": (known.shapes[0],) * 3})
    data = augmented(geometry=alike, step2=True, target=900)
    beta = data.materialise()[0] - augmented(geometry=alike, step2=True, target=900, kind="repeat").materialise()[0]
    rounded = np.round(beta[len(X) :].numpy(), 3)
    assert len(np.unique(rounded, axis=0)) == data.added


def test_real_blocks_are_views_of_what_was_given() -> None:
    x = torch.tensor(X)
    data = augmented(x, torch.tensor(Y))  # type: ignore[arg-type]
    assert data.block(0)[0].data_ptr() == x.data_ptr()
    assert data.block(1)[0].data_ptr() == x[BLOCK:].data_ptr()
    frozen = X.astype(np.float64)
    frozen.flags.writeable = False
    assert torch.equal(augmented(frozen).materialise()[0], data.materialise()[0])


# Bad input


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target": 0}, "augmentation.target must be at least 1, not 0"),
        ({"per_prototype": 0}, "augmentation.per_prototype must be at least 1, not 0"),
        ({"absent": "zero"}, "augmentation.absent must be one of global_mean, skip"),
        ({"scale": "root"}, "augmentation.scale must be one of sqrt, lambda"),
    ],
)
def test_bad_settings_are_refused_by_key(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(FedgeoError, match=expected):
        Filling(**changes)


def test_bad_samples_are_refused_by_client_and_row() -> None:
    broken = X.copy()
    broken[5, 2] = np.nan
    with pytest.raises(FedgeoError, match=f"client 3: the embedding in row 5 \\(class {Y[5]}\\) holds NaN"):
        augmented(broken, client=3)
    for bad in (-1, CLASSES):
        y = Y.copy()
        y[9] = bad
        with pytest.raises(FedgeoError, match=f"client 0: row 9 has label {bad}, but there are 4 classes"):
            augmented(X, y)
    with pytest.raises(FedgeoError, match="client 0: labels must be integers \\(331,\\)"):
        augmented(X, Y[:-1])
    with pytest.raises(FedgeoError, match="client 0: labels must be integers"):
        augmented(X, Y.astype(float))
    with pytest.raises(FedgeoError, match="client 0: embeddings must be floats \\(n, p\\)"):
        augmented(X[0], Y)
    with pytest.raises(FedgeoError, match="client 0: embeddings must be floats"):
        augmented(X.astype(int), Y)
    with pytest.raises(FedgeoError, match="client -1: the seed \\(7\\) and the client's number"):
        augmented(client=-1)
    with pytest.raises(FedgeoError, match="batch size must be at least 1, not 0"):
        augmented().batches(0, torch.Generator())


def test_a_geometry_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FedgeoError, match="client 0: the geometry has dimension 3, the embeddings 6"):
        augmented(geometry=centred_geometry(np.eye(3)))
    with pytest.raises(FedgeoError, match="client 0: the geometry holds class 2, but there are 2 classes"):
        augmented(X[Y == 0], Y[Y == 0], classes=2)
    for kind in ("repeat", "ggeur"):
        with pytest.raises(FedgeoError, match=f"client 0: augmentation.kind={kind} needs the geometry"):
            augmented_set(kind, X, Y, None, classes=CLASSES)
