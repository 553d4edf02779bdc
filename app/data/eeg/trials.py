"""EEG trials of subjects: what every EEG source returns, and how subjects and their trials are split.

Only numpy is needed here; the readers (``eeg_folder``, ``eeg_moabb``, ``eeg_bids``) need mne as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.errors import FedgeoError
from ..source import TEST, TRAIN, VAL

UNIT = "microvolt"
RECORDINGS = (".edf", ".bdf", ".gdf", ".fif", ".vhdr", ".set")  # what a recording's file may end with


@dataclass(frozen=True)
class Trials:
    """One subject's processed trials.

    trials: float32 (n, channels, samples) in microvolt; a read-only memory map where it comes from a cache.
    labels: int64 (n,), an index into ``classes``. run: int64 (n,), an index into ``recordings``.
    windowed: the trials are windows cut side by side from labelled recordings, so a recording must stay on
    one side of a split. notes: what was dropped, renamed or found missing, a line each.
    """

    subject: str
    trials: np.ndarray
    labels: np.ndarray
    run: np.ndarray
    recordings: tuple[str, ...]
    channels: tuple[str, ...]
    rate: float
    classes: tuple[str, ...]
    average_reference: bool = False
    windowed: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.trials.ndim != 3 or self.trials.shape[:2] != (n, len(self.channels)) or self.run.shape != (n,):
            raise FedgeoError(
                f"subject {self.subject}: trials {self.trials.shape} do not fit {n} labels, {len(self.run)} "
                f"run numbers and {len(self.channels)} channels"
            )

    def __len__(self) -> int:
        return len(self.labels)


def check_agreement(subjects: Sequence[Trials]) -> None:
    """Refuse subjects that cannot be trained on together, naming the first that differs and how.

    Raises FedgeoError where classes, sampling rate, channels, their order or the samples of a trial differ.
    """
    if not subjects:
        raise FedgeoError("no subject was read")
    first = subjects[0]
    for other in subjects[1:]:
        pair = f"subject {other.subject} has {{}}, subject {first.subject} {{}}: {{}}"
        if other.classes != first.classes:
            raise FedgeoError(pair.format(f"classes {list(other.classes)}", list(first.classes), "set data.events"))
        if other.rate != first.rate:
            lower = min(other.rate, first.rate)
            advice = f"set data.resample={lower:g} or leave the subject out"
            raise FedgeoError(pair.format(f"{other.rate:g} Hz", f"{first.rate:g} Hz", advice))
        if other.channels != first.channels:
            lacking = [name for name in first.channels if name not in other.channels]
            auxiliary = [name for name in other.channels if name not in first.channels]
            differs = f"no {lacking}" if lacking else f"also {auxiliary}" if auxiliary else "another channel order"
            raise FedgeoError(pair.format(differs, "otherwise", "give data.channels as a list"))
        if other.trials.shape[2] != first.trials.shape[2]:
            samples = f"{other.trials.shape[2]} samples a trial", first.trials.shape[2]
            raise FedgeoError(pair.format(*samples, "use one window and one sampling rate"))


def split_subject(
    labels: np.ndarray,
    runs: np.ndarray,
    fractions: tuple[float, float, float] = (0.75, 0.10, 0.15),
    *,
    seed: int,
    grouped: bool = False,
) -> np.ndarray:
    """A subject's own stratified split into training, validation and test trials.

    labels, runs: int64 (n,). fractions: training, validation, test; they add up to 1. With ``grouped``, whole
    recordings are assigned (for windows of one recording, which resemble each other), stratified by each
    recording's most frequent class. Returns int8 (n,) of TRAIN, VAL and TEST: totals as the fractions say,
    every class spread evenly, and every class present in training. Raises FedgeoError where there are fewer
    trials (recordings, if grouped) than parts.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9 or fractions[0] == 0:
        raise FedgeoError(
            f"the fractions {fractions} of training, validation and test must be positive and add up to 1"
        )
    units = np.unique(runs, return_inverse=True)[1] if grouped else np.arange(len(labels))
    unit_labels = np.array([np.bincount(labels[units == unit]).argmax() for unit in range(units.max(initial=-1) + 1)])
    n, parts = len(unit_labels), sum(fraction > 0 for fraction in fractions)
    if n < parts:
        raise FedgeoError(f"{n} {'recordings' if grouped else 'trials'} cannot be split into {parts} parts")
    rng = np.random.default_rng(seed)
    # Each class is spread over (0, 1] in random order; cutting that line gives stratified parts.
    position = np.empty(n)
    for label in np.unique(unit_labels):
        members = rng.permutation(np.flatnonzero(unit_labels == label))
        position[members] = (np.arange(len(members)) + rng.random()) / len(members)
        position[members[-1]] = 1.0  # so that the last cut, training, has every class
    order = np.argsort(position, kind="stable")
    test = max(1, round(n * fractions[2])) if fractions[2] else 0
    val = max(1, round(n * fractions[1])) if fractions[1] else 0
    split = np.full(n, TRAIN, dtype=np.int8)
    split[order[:test]] = TEST
    split[order[test : test + val]] = VAL
    return split[units]


def leave_subjects_out(subjects: Sequence[str], fraction: float, *, seed: int) -> tuple[str, ...]:
    """The subjects to hold out entirely for the test: a random ``fraction`` of them, at least one, never all.

    Returns their names in the order given. Raises FedgeoError for fewer than two subjects.
    """
    if len(subjects) < 2 or not 0 < fraction < 1:
        raise FedgeoError(
            f"cannot hold out a fraction {fraction} of {len(subjects)} subjects: give two or more, and 0..1"
        )
    count = min(len(subjects) - 1, max(1, round(len(subjects) * fraction)))
    held = np.random.default_rng(seed).choice(len(subjects), size=count, replace=False)
    return tuple(subjects[index] for index in sorted(held))
