"""EEG trials: the type, agreement among subjects, splits, the cache and the simulation."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyriemann.estimation import Covariances
from pyriemann.tangentspace import TangentSpace
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline

from app.common.errors import FedgeoError
from app.data.eeg.simulated import simulated
from app.data.eeg.trial_cache import cached, file_hash
from app.data.eeg.trials import Trials, check_agreement, leave_subjects_out, split_subject
from app.data.source import TEST, TRAIN, VAL


def some_trials(**changes: object) -> Trials:
    values = np.random.default_rng(0).standard_normal((6, 2, 5)).astype(np.float32)
    fields: dict = {
        "subject": "S1", "trials": values, "labels": np.array([0, 1] * 3), "run": np.array([0, 0, 0, 1, 1, 1]),
        "recordings": ("a.edf", "b.edf"), "channels": ("C3", "C4"), "rate": 160.0, "classes": ("left", "right"),
        "notes": ("a.edf: nothing",),
    }  # fmt: skip
    return Trials(**(fields | changes))


def test_trials_that_do_not_fit_their_labels_or_channels_are_refused() -> None:
    for changes in ({"labels": np.array([0, 1])}, {"channels": ("C3",)}, {"run": np.zeros(2, dtype=int)}):
        with pytest.raises(FedgeoError, match="subject S1: trials"):
            some_trials(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("left", "feet")}, r"subject S2 has classes \['left', 'feet'\].*data.events"),
        ({"rate": 128.0}, r"subject S2 has 128 Hz, subject S1 160 Hz: set data.resample=128"),
        ({"channels": ("C3", "Cz")}, r"subject S2 has no \['C4'\]"),
        ({"channels": ("C4", "C3")}, r"subject S2 has another channel order"),
        (
            {"trials": np.zeros((6, 2, 4), dtype=np.float32)},
            r"subject S2 has 4 samples a trial, subject S1 5",
        ),
    ],
)
def test_subjects_that_differ_are_refused_by_name(changes: dict, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        check_agreement([some_trials(), some_trials(subject="S2", **changes)])


def test_subjects_that_agree_pass_and_no_subject_does_not() -> None:
    check_agreement([some_trials(), some_trials(subject="S2")])
    with pytest.raises(FedgeoError, match="no subject"):
        check_agreement([])


@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=7).filter(lambda counts: sum(counts) >= 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_split_has_the_fractions_and_every_class_in_proportion(counts: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    split = split_subject(labels, np.zeros_like(labels), seed=seed)
    n = len(labels)
    assert (split == TEST).sum() == max(1, round(0.15 * n))
    assert (split == VAL).sum() == max(1, round(0.10 * n))
    assert (split == TRAIN).sum() == n - (split == TEST).sum() - (split == VAL).sum()
    share = (split == TEST).mean()
    for label, count in enumerate(counts):
        own = split[labels == label]
        assert (own == TRAIN).any()
        assert abs((own == TEST).sum() - share * count) <= 2
    assert (split == split_subject(labels, np.zeros_like(labels), seed=seed)).all()


def test_another_seed_gives_another_split() -> None:
    labels = np.repeat([0, 1], 40)
    first, second = (split_subject(labels, np.zeros_like(labels), seed=seed) for seed in (1, 2))
    assert (first != second).any()


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(1, 9), min_size=6, max_size=20))
def test_a_grouped_split_never_divides_a_recording(seed: int, sizes: list[int]) -> None:
    runs = np.repeat(np.arange(len(sizes)) * 3 + 5, sizes)
    labels = (runs // 3) % 2
    split = split_subject(labels, runs, seed=seed, grouped=True)
    assert all(len(set(split[runs == run])) == 1 for run in set(runs))
    assert {TRAIN, VAL, TEST} == set(split)
    assert set(labels[split == TRAIN]) == {0, 1}


def test_a_split_of_too_little_or_by_odd_fractions_is_refused() -> None:
    with pytest.raises(FedgeoError, match="2 recordings cannot be split into 3 parts"):
        split_subject(np.repeat([0, 1], 10), np.repeat([0, 1], 10), seed=0, grouped=True)
    with pytest.raises(FedgeoError, match="fractions"):
        split_subject(np.arange(10), np.zeros(10, dtype=int), (0.5, 0.1, 0.1), seed=0)


def test_a_split_without_validation_has_none() -> None:
    split = split_subject(np.repeat([0, 1], 10), np.zeros(20, dtype=int), (0.8, 0.0, 0.2), seed=0)
    assert np.bincount(split).tolist() == [16, 0, 4]


@given(n=st.integers(2, 40), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 1000))
def test_some_but_never_all_subjects_are_held_out(n: int, fraction: float, seed: int) -> None:
    subjects = [f"S{index}" for index in range(n)]
    held = leave_subjects_out(subjects, fraction, seed=seed)
    assert 1 <= len(held) <= n - 1 and len(set(held)) == len(held)
    assert list(held) == [name for name in subjects if name in held]
    assert abs(len(held) - fraction * n) <= 1
    assert held == leave_subjects_out(subjects, fraction, seed=seed)


def test_one_subject_cannot_be_held_out() -> None:
    with pytest.raises(FedgeoError, match="two or more"):
        leave_subjects_out(["S1"], 0.5, seed=0)


# --- the cache


def test_a_cached_subject_is_the_same_and_memory_mapped(tmp_path: Path) -> None:
    calls = []

    def process() -> Trials:
        calls.append(1)
        return some_trials()

    first, second = (cached(tmp_path, "S1", {"band": [8, 32]}, process) for _ in range(2))
    assert len(calls) == 1
    for trials in (first, second):
        assert isinstance(trials.trials, np.memmap) and not trials.trials.flags.writeable
        for field in dataclasses.fields(Trials):
            expected, value = getattr(some_trials(), field.name), getattr(trials, field.name)
            assert np.array_equal(value, expected) if isinstance(expected, np.ndarray) else value == expected
    cached(tmp_path, "S1", {"band": [8, 30]}, process)
    cached(tmp_path, "S2", {"band": [8, 32]}, process)
    assert len(calls) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "no json", "half a json", "empty"])
def test_a_damaged_cache_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    cached(tmp_path, "S1", {}, some_trials)
    (entry,) = tmp_path.iterdir()
    array, text = entry / "trials.npy", entry / "trials.json"
    content = array.read_bytes()
    if damage == "cut":
        array.write_bytes(content[:-40])
    elif damage == "flipped":
        array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no json":
        text.unlink()
    elif damage == "half a json":
        text.write_text(text.read_text()[:30])
    else:
        array.write_bytes(b"")
    again = cached(tmp_path, "S1", {}, some_trials)
    assert np.array_equal(again.trials, some_trials().trials)
    assert array.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedgeoError, match=f"cannot be written at {tmp_path}.*: set cache_dir"):
        cached(tmp_path / "file" / "cache", "S1", {}, some_trials)


def test_the_hash_is_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    assert file_hash(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# --- the simulation


def test_simulated_trials_have_the_form_of_real_ones_and_repeat() -> None:
    subjects = simulated(3, trials_per_class=10, classes=("a", "b", "c"), channels=12, rate=100.0, seconds=2.0)
    check_agreement(subjects)
    first = subjects[0]
    assert first.trials.shape == (30, 12, 200) and first.trials.dtype == np.float32
    assert np.bincount(first.labels).tolist() == [10, 10, 10]
    assert all(subject.subject.startswith("simulated") and subject.notes == ("simulated",) for subject in subjects)
    again = simulated(3, trials_per_class=10, classes=("a", "b", "c"), channels=12, rate=100.0, seconds=2.0)
    assert all(np.array_equal(one.trials, other.trials) for one, other in zip(subjects, again, strict=True))
    other = simulated(1, trials_per_class=10, classes=("a", "b", "c"), channels=12, rate=100.0, seconds=2.0, seed=1)
    assert not np.array_equal(first.trials, other[0].trials)


def test_simulated_trials_are_microvolts_in_the_band() -> None:
    first = simulated(1)[0]
    spread = np.median(first.trials.std(axis=(0, 2)))
    assert 5 < spread < 40
    power = (np.abs(np.fft.rfft(first.trials, axis=2)) ** 2).mean(axis=(0, 1))
    frequency = np.fft.rfftfreq(first.trials.shape[2], 1 / first.rate)
    assert power[(frequency >= 7) & (frequency <= 33)].sum() > 0.95 * power.sum()


def test_a_class_weakens_the_rhythm_it_stands_for() -> None:
    """Averaged over subjects, the two classes differ in log power by electrode, in opposite directions."""
    differences = []
    for subject in simulated(8):
        power = np.log(subject.trials.var(axis=2))
        differences.append(power[subject.labels == 0].mean(axis=0) - power[subject.labels == 1].mean(axis=0))
    mean = np.mean(differences, axis=0)
    assert mean.min() < -0.12 and mean.max() > 0.12


def test_simulated_subjects_can_be_learnt_and_transfer_less_well() -> None:
    """Tangent space and logistic regression: well above chance within a subject, lower across subjects."""
    subjects = simulated(8)
    covariances = [Covariances("oas").transform(subject.trials.astype(float)) for subject in subjects]
    model = make_pipeline(TangentSpace(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    within = np.mean(
        [cross_val_score(model, x, s.labels, cv=folds).mean() for x, s in zip(covariances, subjects, strict=True)]
    )
    across = []
    for left_out, subject in enumerate(subjects):
        others = [index for index in range(len(subjects)) if index != left_out]
        model.fit(
            np.concatenate([covariances[index] for index in others]),
            np.concatenate([subjects[index].labels for index in others]),
        )
        across.append(model.score(covariances[left_out], subject.labels))
    assert 0.7 <= within <= 0.95
    assert 0.55 <= np.mean(across) < within


def test_impossible_simulations_are_refused() -> None:
    for arguments in ({"classes": ("a",)}, {"channels": 1}, {"rate": 60.0}, {"subjects": 0}):
        with pytest.raises(FedgeoError, match="simulated EEG needs"):
            simulated(**arguments)
