"""Covariances, recentring and z-scores against independent computations; the checks of bad recordings, each
by name."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyriemann.geometry.distance import distance_riemann
from pyriemann.geometry.mean import mean_riemann
from sklearn.covariance import OAS, ledoit_wolf

from app.common.errors import FedgeoError
from app.geometry.covariances import ESTIMATORS, check_trials, covariances, recentre, zscore

NAMES = ("Fz", "Cz", "C3", "C4", "Pz", "Oz")


def recordings(n: int = 12, channels: int = 6, samples: int = 160, seed: int = 0, scale: float = 10.0) -> np.ndarray:
    """Mixed sources of unequal power, with an offset in every channel, around ``scale`` microvolt."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(channels, channels))
    mix /= np.linalg.norm(mix, axis=1, keepdims=True)
    power = np.exp(0.5 * rng.normal(size=(n, channels, 1)))
    return scale * (mix @ (power * rng.normal(size=(n, channels, samples))) + rng.normal(size=(n, channels, 1)))


# -------------------------------------------------------------- covariances


def test_scm_is_numpys_covariance() -> None:
    x = recordings().astype(np.float32)
    ours = covariances(x)
    assert ours.dtype == np.float64
    assert np.array_equal(ours, ours.mT)
    for s, trial in zip(ours, x, strict=True):
        np.testing.assert_allclose(s, np.cov(trial.astype(np.float64)), rtol=1e-12)


def test_shrinkage_is_scikit_learns() -> None:
    x = recordings()
    np.testing.assert_allclose(covariances(x, "oas")[3], OAS().fit(x[3].T).covariance_, rtol=1e-10)
    np.testing.assert_allclose(covariances(x, "lwf")[3], ledoit_wolf(x[3].T)[0], rtol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_gives_definite_symmetric_matrices_whatever_the_offset(estimator: str) -> None:
    x = recordings(n=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's remarks about its iterations
        s = covariances(x, estimator)
        shifted = covariances(x + 50.0, estimator)
    assert s.shape == (3, 6, 6)
    assert np.array_equal(s, s.mT)
    assert np.linalg.eigvalsh(s).min() > 0
    np.testing.assert_allclose(shifted, s, rtol=1e-6, atol=1e-8 * np.abs(s).max())


def test_unknown_estimator_is_refused_with_the_choices() -> None:
    with pytest.raises(FedgeoError, match="scm, oas, lwf"):
        covariances(recordings(n=2), "best")


# --------------------------------------------------------------- recentring


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_the_mean_of_recentred_covariances_is_the_identity(seed: int) -> None:
    s = covariances(recordings(seed=seed))
    moved = recentre(s)
    np.testing.assert_allclose(mean_riemann(moved, tol=1e-12, maxiter=200), np.eye(6), atol=1e-7)
    np.testing.assert_allclose(recentre(s, "euclid").mean(axis=0), np.eye(6), atol=1e-10)
    assert np.array_equal(moved, moved.mT)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_recentring_keeps_distances_and_takes_gains_and_mixing_away(seed: int) -> None:
    s = covariances(recordings(seed=seed))
    mixing = np.random.default_rng(seed).normal(size=(6, 6)) + 3 * np.eye(6)
    moved, other = recentre(s), recentre(mixing @ s @ mixing.T)
    assert distance_riemann(moved[0], moved[1]) == pytest.approx(distance_riemann(s[0], s[1]), rel=1e-6)
    # another head, the same brain: equal but for a rotation
    np.testing.assert_allclose(np.linalg.eigvalsh(moved), np.linalg.eigvalsh(other), rtol=1e-5)
    np.testing.assert_allclose(recentre(100 * s), moved, rtol=1e-8, atol=1e-8)


def test_the_mean_may_be_that_of_the_training_trials_alone() -> None:
    s = covariances(recordings())
    mask = np.arange(12) < 8
    moved = recentre(s, fit=mask)
    np.testing.assert_allclose(mean_riemann(moved[:8], tol=1e-12, maxiter=200), np.eye(6), atol=1e-7)
    changed = s.copy()
    changed[8:] *= 3
    np.testing.assert_array_equal(recentre(changed, fit=mask)[:8], moved[:8])
    np.testing.assert_array_equal(recentre(s, fit=np.arange(8)), moved)


@pytest.mark.parametrize("reference", ["riemann", "euclid"])
def test_recentring_after_an_average_reference_stays_in_the_range(reference: str) -> None:
    x = recordings()
    referenced = (x - x.mean(axis=1, keepdims=True)).astype(np.float32)
    moved = recentre(covariances(referenced), reference)
    assert np.isfinite(moved).all()
    np.testing.assert_allclose(moved @ np.ones(6), 0, atol=1e-4)
    # the same as recentring five channels of an orthonormal basis of the range
    basis = np.linalg.svd(np.eye(6) - 1 / 6)[0][:, :5]
    inside = recentre(basis.T @ covariances(referenced) @ basis, reference)
    np.testing.assert_allclose(np.linalg.eigvalsh(moved)[:, 1:], np.linalg.eigvalsh(inside), rtol=1e-4)


def test_trials_too_short_for_their_channels_cannot_be_recentred() -> None:
    s = covariances(recordings(samples=5))
    with pytest.raises(FedgeoError, match="covariance 0 has a lower rank .*shrinkage"):
        recentre(s)
    assert np.isfinite(recentre(covariances(recordings(samples=5), "oas"))).all()


def test_bad_references_are_refused() -> None:
    s = covariances(recordings())
    with pytest.raises(FedgeoError, match="riemann, euclid"):
        recentre(s, "median")
    with pytest.raises(FedgeoError, match="at least one trial"):
        recentre(s, fit=np.zeros(12, dtype=bool))


# ------------------------------------------------------------------ z-score


def test_zscore_is_per_channel_and_trial() -> None:
    x = recordings()
    z = zscore(x)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z.mean(axis=2), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=2), 1, atol=1e-5)
    np.testing.assert_allclose(zscore(1e-6 * x + 7), z, atol=1e-4)  # neither unit nor offset matters
    np.testing.assert_array_equal(zscore(x[4:5])[0], z[4])  # nor the other trials


def test_zscore_of_a_flat_channel_is_refused() -> None:
    x = recordings()
    x[2, 3] = 4.0
    with pytest.raises(FedgeoError, match="trial 2, channel 3"):
        zscore(x)


# ------------------------------------------------------------------- checks


def test_good_trials_pass_without_remarks() -> None:
    x = recordings()
    report = check_trials(x, NAMES, "subject 1")
    assert report.remarks == ()
    assert report.rank == 6
    assert report.median_std == pytest.approx(np.median(x.std(axis=2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(value: float) -> None:
    x = recordings()
    x[3, 2, 70] = value
    with pytest.raises(FedgeoError, match=r"subject 7, trial 3, channel C3: .*not finite \(1 of 12 trials"):
        check_trials(x, NAMES, "subject 7")
    names = [f"S007R0{i // 4}.edf window {i % 4}" for i in range(12)]
    with pytest.raises(FedgeoError, match=r"subject 7, S007R00\.edf window 3, channel C3"):
        check_trials(x, NAMES, "subject 7", names)


def test_eigh_alone_would_let_a_nan_through() -> None:
    s = covariances(recordings(n=1))[0]
    s[0, 5] = np.nan  # the upper triangle, which eigh does not read
    assert np.isfinite(np.linalg.eigvalsh(s)).all()


@pytest.mark.parametrize("residue", [0.0, 1e-9])
def test_a_flat_channel_is_named(residue: float) -> None:
    x = recordings()
    x[:, 4] = 3.0 + residue * np.random.default_rng(0).normal(size=(12, 160))
    with pytest.raises(FedgeoError, match=r"subject 7, trial 0, channel Pz: is flat \(12 of 12 trials\)"):
        check_trials(x, NAMES, "subject 7")


def test_a_channel_flat_in_one_trial_is_named() -> None:
    x = recordings()
    x[5, 1] = 0.0
    with pytest.raises(FedgeoError, match=r"trial 5, channel Cz: is flat \(1 of 12 trials\)"):
        check_trials(x, NAMES, "subject 7")


def test_nothing_but_zeros_is_flat() -> None:
    with pytest.raises(FedgeoError, match="channel Fz: is flat"):
        check_trials(np.zeros((2, 6, 50)), NAMES, "subject 7")


@pytest.mark.parametrize(("unit", "factor"), [(1e-6, "1e\\+06"), (1e-3, "1000"), (1e3, "0.001")])
def test_another_unit_is_refused_with_the_factor(unit: float, factor: str) -> None:
    with pytest.raises(
        FedgeoError,
        match=rf"subject 7: the median channel standard deviation .* multiply the signals by {factor}$",
    ):
        check_trials(unit * recordings(), NAMES, "subject 7")


@pytest.mark.parametrize("scale", [0.3, 400.0])
def test_unusual_but_possible_scales_are_remarked(scale: float) -> None:
    (remark,) = check_trials(recordings(scale=scale), NAMES, "subject 7").remarks
    assert remark.startswith("subject 7: the median channel standard deviation")


def test_rank_lost_by_average_reference_is_reported_not_refused() -> None:
    x = recordings()
    referenced = (x - x.mean(axis=1, keepdims=True)).astype(np.float32)
    report = check_trials(referenced, NAMES, "subject 7")
    assert report.rank == 5
    (remark,) = report.remarks
    assert "rank 5 of 6" in remark
    assert "up to 5" in remark


def test_shapes_that_do_not_fit_are_refused() -> None:
    for x in (recordings(channels=5), recordings(n=1)[:0], recordings()[0], recordings(samples=1)):
        with pytest.raises(FedgeoError, match="expected trials"):
            check_trials(x, NAMES, "subject 7")


# ---------------------------------------------------------- real recordings


def test_a_real_recording(test_data: Path) -> None:
    mne = pytest.importorskip("mne")
    folder = test_data / "eeg/MNE-eegbci-data/files/eegmmidb/1.0.0/S007"
    raw = mne.io.read_raw_edf(folder / "S007R04.edf", preload=True, verbose="error")
    raw.filter(8, 32, verbose="error")
    events, _ = mne.events_from_annotations(raw, {"T1": 1, "T2": 2}, verbose="error")
    epochs = mne.Epochs(raw, events, tmin=0, tmax=3, baseline=None, preload=True, verbose="error")
    volts = epochs.get_data(copy=False)
    names = [name.strip(".") for name in raw.ch_names]
    report = check_trials(1e6 * volts, names, "subject 7")
    assert report.rank == 64
    assert 1 < report.median_std < 100
    with pytest.raises(FedgeoError, match=r"multiply the signals by 1e\+06"):
        check_trials(volts, names, "subject 7")
    s = covariances(1e6 * volts)
    np.testing.assert_allclose(s[0], np.cov(1e6 * volts[0]), rtol=1e-10)
    np.testing.assert_allclose(recentre(s, "euclid").mean(axis=0), np.eye(64), atol=1e-9)
