"""EEG trials -> SPD matrices: checks, covariance estimators, recentring; and z-scores for EEGNet.

Trials are arrays (n, channels, samples) in microvolt. Covariances are float64, in microvolt^2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyriemann.geometry.covariance
from pyriemann.geometry.base import invsqrtm
from pyriemann.geometry.mean import mean_euclid, mean_riemann

from ..common.errors import FedgeoError

# pyriemann's mcd is left out: it draws from the global random state
ESTIMATORS = ("scm", "oas", "lwf", "sch", "hub", "stu", "tyl")
REFERENCES = {"riemann": mean_riemann, "euclid": mean_euclid}

# Band-passed EEG deviates by about 1 to 100 microvolt. Half a factor of 1000 beyond, the unit is another.
USUAL_STD = (1.0, 100.0)
PLAUSIBLE_STD = (0.03, 3000.0)
# A flat channel is not exactly 0 after filtering, a lost dimension not after rounding to float32.
FLAT = 1e-6
RANK_TOLERANCE = 1e-10


@dataclass(frozen=True)
class TrialReport:
    """What ``check_trials`` found in trials that can be used: figures, and remarks for the user."""

    median_std: float
    rank: int
    remarks: tuple[str, ...]


def check_trials(
    trials: np.ndarray, channels: Sequence[str], where: str, trial_names: Sequence[str] | None = None
) -> TrialReport:
    """Refuse trials that would spoil training without an error, and report what is only unusual.

    trials: (n, c, t), microvolt. channels: their c names. where: what to call them in a message ("subject
    7"). trial_names: what to call each trial ("trial 3" if None; a loader gives the file). FedgeoError names
    the trial and channel for a value that is not finite and for a channel that is flat in a trial; and for a
    unit that is not microvolt, with the factor.
    """
    if trials.ndim != 3 or len(trials) == 0 or trials.shape[1] != len(channels) or trials.shape[2] < 2:
        raise FedgeoError(
            f"{where}: expected trials (n >= 1, {len(channels)} channels, at least 2 samples), got shape {trials.shape}"
        )

    def name(trial: int, channel: int) -> str:
        trial_name = f"trial {trial}" if trial_names is None else trial_names[trial]
        return f"{where}, {trial_name}, channel {channels[channel]}"

    finite = np.isfinite(trials).all(axis=2)
    if not finite.all():
        trial, channel = np.argwhere(~finite)[0]
        raise FedgeoError(
            f"{name(trial, channel)}: holds a value that is not finite ({int((~finite).any(axis=1).sum())} "
            f"of {len(trials)} trials affected); mark the span BAD or leave the trial out"
        )
    stds = trials.std(axis=2, dtype=np.float64)
    median = float(np.median(stds))
    flat = stds <= FLAT * median
    if flat.any():
        trial, channel = np.argwhere(flat)[0]
        raise FedgeoError(
            f"{name(trial, channel)}: is flat ({int(flat[:, channel].sum())} of {len(trials)} trials); leave "
            "the channel out at every site, or the trials"
        )
    low, high = PLAUSIBLE_STD
    usual = f"{USUAL_STD[0]:g} to {USUAL_STD[1]:g} microvolt"
    if not low <= median <= high:
        factor = 10.0 ** (3 * round(np.log10(10.0 / median) / 3))
        raise FedgeoError(
            f"{where}: the median channel standard deviation is {median:.3g}, expected about {usual}: "
            f"multiply the signals by {factor:g}"
        )
    remarks = []
    if not USUAL_STD[0] <= median <= USUAL_STD[1]:
        remarks.append(
            f"{where}: the median channel standard deviation is {median:.3g}, usual are {usual}: check the "
            "unit and the filter"
        )
    rank = _rank(covariances(trials).mean(axis=0))
    if rank < len(channels):
        remarks.append(
            f"{where}: rank {rank} of {len(channels)} channels (an average reference costs one): SPDnet is "
            f"well defined for hidden sizes up to {rank}"
        )
    return TrialReport(median, rank, tuple(remarks))


def covariances(trials: np.ndarray, estimator: str = "scm") -> np.ndarray:
    """One covariance matrix a trial, float64 (n, c, c), exactly symmetric.

    trials: (n, c, t). ``scm`` is the paper's sample covariance of each centred trial, X X^T / (t - 1). The
    others are pyriemann's: shrinkage (``oas``, ``lwf``, ``sch``) and robust ones (``hub``, ``stu``, ``tyl``).
    """
    if estimator not in ESTIMATORS:
        raise FedgeoError(f"covariance estimator {estimator!r} is not known: choose one of {', '.join(ESTIMATORS)}")
    # trial by trial, since trials may be memory-mapped
    result = np.stack([_covariance(trial, estimator) for trial in trials])
    return 0.5 * (result + result.mT)


def _covariance(trial: np.ndarray, estimator: str) -> np.ndarray:
    x = trial.astype(np.float64)
    x -= x.mean(axis=-1, keepdims=True)
    if estimator == "scm":
        return x @ x.T / (x.shape[-1] - 1)
    return pyriemann.geometry.covariance.covariances(x[None], estimator=estimator)[0]


def recentre(covariances: np.ndarray, reference: str = "riemann", fit: np.ndarray | None = None) -> np.ndarray:
    """Move one subject's covariances so that their mean is the identity: S -> M^{-1/2} S M^{-1/2}.

    covariances: (n, c, c), all of ONE subject; no labels are needed. reference: the mean M, ``riemann``
    (affine-invariant) or ``euclid``. fit: a boolean mask or indices of the trials that M is the mean of (all
    if None). Returns (n, c, c) float64 without a unit, so that SPDnet's epsilon is then relative to 1.

    Where the mean lacks full rank (average reference), all happens on its range, and the result has the
    mean's rank. FedgeoError where single trials have a lower rank than their mean.
    """
    if reference not in REFERENCES:
        raise FedgeoError(f"reference {reference!r} is not known: choose one of {', '.join(REFERENCES)}")
    fitted = covariances if fit is None else covariances[fit]
    if len(fitted) == 0:
        raise FedgeoError("recentring needs at least one trial to take the mean of")
    values, vectors = np.linalg.eigh(fitted.mean(axis=0))
    basis = vectors[:, values > RANK_TOLERANCE * values[-1]]
    inside = basis.T @ covariances @ basis
    smallest = np.linalg.eigvalsh(inside)
    deficient = smallest[:, 0] <= RANK_TOLERANCE * 1e-2 * smallest[:, -1]
    if deficient.any():
        raise FedgeoError(
            f"covariance {int(deficient.argmax())} has a lower rank than the subject's mean "
            f"({basis.shape[1]}), so it cannot be recentred: use a shrinkage estimator (oas, lwf) or longer "
            "trials"
        )
    whitening = invsqrtm(REFERENCES[reference](inside if fit is None else inside[fit]))
    result = basis @ (whitening @ inside @ whitening) @ basis.T
    return 0.5 * (result + result.mT)


def zscore(trials: np.ndarray) -> np.ndarray:
    """Each channel of each trial over time: less its mean, by its standard deviation. For EEGNet.

    trials: (n, c, t); returns the same shape in float32. The trial is the scope, so that nothing of one
    trial, subject or split reaches another. The channels' relative power is lost, the time courses stay.
    FedgeoError for a channel that does not vary.
    """
    x = np.asarray(trials, dtype=np.float64)
    std = x.std(axis=-1, keepdims=True)
    if not (std > 0).all():
        trial, channel = np.argwhere(~(std[..., 0] > 0))[0]
        raise FedgeoError(f"trial {trial}, channel {channel}: is flat or not finite, and has no z-score")
    return ((x - x.mean(axis=-1, keepdims=True)) / std).astype(np.float32)


def _rank(covariance: np.ndarray) -> int:
    values = np.linalg.eigvalsh(covariance)
    return int((values > RANK_TOLERANCE * values[-1]).sum())
