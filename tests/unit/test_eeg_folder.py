"""Folders of recordings: formats, names, processing against independent computations, and real recordings."""

from pathlib import Path

import mne
import numpy as np
import pytest
from pyriemann.estimation import Covariances
from pyriemann.tangentspace import TangentSpace
from scipy.signal import butter, sosfiltfilt
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from app.common.errors import FedgeoError
from app.data.eeg.folder import eeg_folder, natural
from app.data.eeg.recording import normalise_channel
from tests.eeg_files import CHANNELS, EVENTS, make_raw, save

SORTED_CHANNELS = ("C3", "C4", "Fp1", "Oz")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Fp1.", "Fp1"), ("Fc5.", "FC5"), ("Cz..", "Cz"), ("FP1", "Fp1"), ("EEG Fp1-REF", "Fp1"),
        ("EEG FP1-Ref", "Fp1"),
        ("EEG C3-LE", "C3"), ("C3-A2", "C3"), (" POZ ", "POz"), ("t3", "T7"), ("EEG T6-REF", "P8"), ("FCZ", "FCz"),
        ("Fp1-F7", "Fp1-F7"), ("EEG A1-REF", "A1"), ("E17", "E17"), ("EEG 001", "EEG 001"), ("iz", "Iz"),
    ],
)  # fmt: skip
def test_a_channel_has_one_name(name: str, expected: str) -> None:
    assert normalise_channel(name) == expected
    assert normalise_channel(normalise_channel(name)) == expected


def test_natural_order_counts() -> None:
    assert sorted(["S10", "S2", "S1", "A3"], key=natural) == ["A3", "S1", "S2", "S10"]


@pytest.mark.parametrize("suffix", [".edf", ".bdf", ".gdf", "_raw.fif", ".vhdr", ".set"])
def test_every_format_gives_the_same_trials(tmp_path: Path, suffix: str) -> None:
    labels = ("769", "770") * 5 if suffix == ".gdf" else ("T1", "T2") * 5
    prefix = "Comment/" if suffix == ".vhdr" else ""  # how the BrainVision writer files an annotation
    raw = make_raw(labels=labels)
    save(raw, tmp_path / "anna" / f"session{suffix}")
    events = {"left": prefix + labels[0], "right": prefix + labels[1]}
    (trials,) = eeg_folder(tmp_path, events=events, window=(0.5, 2.5))
    assert (trials.subject, trials.channels, trials.rate) == ("anna", SORTED_CHANNELS, 160.0)
    assert trials.classes == ("left", "right") and trials.labels.tolist() == [0, 1] * 5
    filtered = sosfiltfilt(butter(4, (8, 32), btype="bandpass", fs=160, output="sos"), raw.get_data() * 1e6)
    for onset, trial in zip(raw.annotations.onset, trials.trials, strict=True):
        start = round((onset + 0.5) * 160)
        expected = filtered[[2, 0, 1, 3], start : start + 321]
        assert trial.shape == expected.shape
        assert np.abs(trial - expected).max() < 0.5  # EDF keeps 16 bits; the edges of the file are padded otherwise


def test_the_band_passes_what_it_should(tmp_path: Path) -> None:
    """A sum of sines: 20 Hz is kept in microvolts, 2 Hz and 60 Hz go; without a band all stay."""
    raw = make_raw(channels=("C3", "C4"))
    time = raw.times
    sines = sum(20e-6 * np.sin(2 * np.pi * f * time) for f in (2, 20, 60))
    raw._data[:] = [sines, 0.5 * sines]
    save(raw, tmp_path / "s" / "x_raw.fif")
    amplitude = {}
    for band in ((8.0, 32.0), None):
        (trials,) = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 2.0 - 1 / 160), band=band)
        amplitude[band] = np.abs(np.fft.rfft(trials.trials[:, 0], axis=1)).mean(axis=0)[[4, 40, 120]] / 160
    assert np.allclose(amplitude[None], [20, 20, 20], rtol=0.02)
    assert np.allclose(amplitude[(8.0, 32.0)], [0, 20, 0], atol=0.3)
    (notched,) = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 2.0 - 1 / 160), band=None, notch=60.0)
    spectrum = np.abs(np.fft.rfft(notched.trials[2:-2, 0], axis=1)).mean(axis=0)[[4, 40, 120]] / 160
    assert np.allclose(spectrum, [20, 20, 0], atol=0.5)


def test_resampling_brings_two_rates_together(tmp_path: Path) -> None:
    for name, rate in (("a", 160.0), ("b", 128.0)):
        raw = make_raw(channels=("C3", "C4"), rate=rate)
        raw._data[:] = [
            20e-6 * np.sin(2 * np.pi * 10 * raw.times),
            20e-6 * np.cos(2 * np.pi * 10 * raw.times),
        ]
        save(raw, tmp_path / name / "x_raw.fif")
    first, second = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 2.0), resample=100.0)
    assert first.rate == second.rate == 100.0
    assert first.trials.shape == second.trials.shape == (10, 2, 201)
    assert np.abs(first.trials[1:-1] - second.trials[1:-1]).max() < 0.5
    time = np.arange(201) / 100
    sine = 20 * np.sin(2 * np.pi * 10 * time)
    assert np.abs(first.trials[1:-1, 0] - sine).max() < 1.0  # the filter passes 96 % at 10 Hz


def test_other_order_and_other_spelling_come_to_one(tmp_path: Path) -> None:
    raw = make_raw()
    save(raw, tmp_path / "a" / "x_raw.fif")
    other = raw.copy().reorder_channels(["Oz", "C3", "Fp1", "C4"])
    other.rename_channels({"Oz": "OZ..", "C3": "EEG C3-REF", "Fp1": "EEG FP1-REF"})
    save(other, tmp_path / "b" / "x_raw.fif")
    first, second = eeg_folder(tmp_path, events=EVENTS)
    assert first.channels == second.channels == SORTED_CHANNELS
    assert np.array_equal(first.trials, second.trials)
    (listed, _) = eeg_folder(tmp_path, events=EVENTS, channels=["oz", "C3"])
    assert listed.channels == ("Oz", "C3")
    assert np.array_equal(listed.trials, first.trials[:, [3, 0]])
    assert "channels left out: C4, Fp1" in listed.notes[0]


def test_common_channels_are_the_intersection(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    save(make_raw(channels=("Cz", "Oz", "C4")), tmp_path / "b" / "x_raw.fif")
    first, second = eeg_folder(tmp_path, events=EVENTS, channels="common")
    assert first.channels == second.channels == ("C4", "Oz")
    save(make_raw(channels=("P3", "P4")), tmp_path / "c" / "x_raw.fif")
    with pytest.raises(FedgeoError, match="no channel in common"):
        eeg_folder(tmp_path, events=EVENTS, channels="common")


def test_channels_that_are_not_eeg_are_left_out(tmp_path: Path) -> None:
    raw = make_raw(channels=(*CHANNELS, "EOG left", "ECG", "HEOG", "Resp-1", "STI 014"))
    raw.set_channel_types({"STI 014": "stim"}, on_unit_change="ignore")
    save(raw, tmp_path / "a" / "x_raw.fif")
    (trials,) = eeg_folder(tmp_path, events=EVENTS)
    assert trials.channels == SORTED_CHANNELS


def test_bad_segments_cost_their_trials_only(tmp_path: Path) -> None:
    raw = make_raw()
    raw._data[:, 7 * 160 : 8 * 160] = 0  # flat, but marked, so it is no fault
    raw.annotations.append([7.0, 18.2], [1.0, 0.1], ["BAD_amplifier", "bad blink"])
    save(raw, tmp_path / "a" / "x_raw.fif")
    (trials,) = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 2.0))
    assert trials.labels.tolist() == [0, 0, 1, 1, 0, 1, 0, 1]
    assert trials.notes == ("a/x_raw.fif: 2 of 10 trials dropped (BAD_amplifier, bad blink)",)


def test_a_trial_beyond_the_end_is_dropped_and_noted(tmp_path: Path) -> None:
    save(make_raw(seconds=39.0), tmp_path / "a" / "x_raw.fif")
    (trials,) = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 3.0))
    assert len(trials) == 9
    assert trials.notes == ("a/x_raw.fif: 1 of 10 trials dropped (TOO_SHORT)",)


def test_a_recording_that_starts_late_keeps_its_events(tmp_path: Path) -> None:
    """A cropped FIF has a first sample that is not zero, on which annotations are counted."""
    raw = make_raw()
    save(raw, tmp_path / "whole" / "x_raw.fif")
    save(raw.copy().crop(tmin=4.0), tmp_path / "cropped" / "x_raw.fif")
    cropped, whole = eeg_folder(tmp_path, events=EVENTS, window=(0.0, 1.0))
    assert (len(cropped), len(whole)) == (9, 10)
    assert np.abs(cropped.trials[2:] - whole.trials[3:]).max() < 0.01


def test_the_parts_of_a_split_recording_are_read_once(tmp_path: Path) -> None:
    raw = make_raw(rate=1000.0)
    (tmp_path / "a").mkdir()
    raw.save(tmp_path / "a" / "x_raw.fif", fmt="double", split_size=1_300_000, buffer_size_sec=1.0, verbose="ERROR")
    save(make_raw(rate=1000.0, seed=1), tmp_path / "a" / "y-3.fif")
    assert len(list((tmp_path / "a").glob("x_raw*"))) > 1
    (trials,) = eeg_folder(tmp_path, events=EVENTS)
    assert trials.recordings == ("a/x_raw.fif", "a/y-3.fif") and len(trials) == 20


def test_subjects_and_runs_come_from_the_path(tmp_path: Path) -> None:
    for seed, name in enumerate(("S010R04", "S010R08", "S002R04", "S002R12")):
        save(make_raw(seed=seed), tmp_path / name[:4] / f"{name}.edf")
    both = eeg_folder(tmp_path, events=EVENTS)
    assert [subject.subject for subject in both] == ["S002", "S010"]
    assert both[0].recordings == ("S002/S002R04.edf", "S002/S002R12.edf")
    assert both[0].run.tolist() == [0] * 10 + [1] * 10
    (one,) = eeg_folder(tmp_path, events=EVENTS, subjects=[10], runs=[8])
    assert one.recordings == ("S010/S010R08.edf",)
    assert eeg_folder(tmp_path, events=EVENTS, subjects=["s010"], runs=[8])[0].subject == "S010"
    with pytest.raises(FedgeoError, match="subject 7 is not among S002, S010"):
        eeg_folder(tmp_path, events=EVENTS, subjects=[7])
    with pytest.raises(FedgeoError, match="subject S010 has no such recording"):
        eeg_folder(tmp_path, events=EVENTS, subjects=[10], runs=[12])
    with pytest.raises(FedgeoError, match=r"runs \[6\]: subject S002 has no such recording"):
        eeg_folder(tmp_path, events=EVENTS, runs=[6])


def test_a_pattern_finds_subject_and_run(tmp_path: Path) -> None:
    for seed, name in enumerate(("p7_block1", "p7_block2", "p11_block1")):
        save(make_raw(seed=seed), tmp_path / f"{name}_raw.fif")
    pattern = r"p(?P<subject>\d+)_block(?P<run>\d+)"
    subjects = eeg_folder(tmp_path, events=EVENTS, subject_pattern=pattern, runs=[1])
    assert [subject.subject for subject in subjects] == ["7", "11"]
    assert [len(subject) for subject in eeg_folder(tmp_path, events=EVENTS, subject_pattern=r"(p\d+)_")] == [
        20,
        10,
    ]
    with pytest.raises(FedgeoError, match="finds no subject in p11_block1_raw.fif"):
        eeg_folder(tmp_path, events=EVENTS, subject_pattern=r"x(\d+)")
    with pytest.raises(FedgeoError, match="tells no run"):
        eeg_folder(tmp_path, events=EVENTS, runs=[1], subject_pattern=r"(p\d+)_")
    with pytest.raises(FedgeoError, match=r"tell p11, p7: which .* Set data.subject_pattern"):
        eeg_folder(tmp_path, events=EVENTS)


def test_a_subject_number_that_fits_two_is_refused(tmp_path: Path) -> None:
    for name in ("A1", "B1"):
        save(make_raw(), tmp_path / name / "x_raw.fif")
    with pytest.raises(FedgeoError, match=r"subject 1 could be any of \['A1', 'B1'\]"):
        eeg_folder(tmp_path, events=EVENTS, subjects=[1])


def test_runs_of_another_meaning_are_not_mixed(tmp_path: Path) -> None:
    for run in (4, 6):
        save(make_raw(), tmp_path / f"S001R{run:02d}.edf")
    with pytest.raises(
        FedgeoError, match=r"left and right fist in runs \[4\] but both fists and both feet in runs \[6\]"
    ):
        eeg_folder(tmp_path, events=EVENTS)
    assert len(eeg_folder(tmp_path, events=EVENTS, runs=[6])[0]) == 10


def test_an_upper_case_suffix_is_a_recording_too(tmp_path: Path) -> None:
    file = save(make_raw(), tmp_path / "S001R04.edf")
    file.rename(tmp_path / "S001R04.EDF")
    (trials,) = eeg_folder(tmp_path, events=EVENTS, runs=[4])
    assert (trials.subject, len(trials)) == ("S001", 10)


def test_the_order_of_the_mapping_is_the_order_of_the_classes(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    (trials,) = eeg_folder(tmp_path, events={"right_hand": "T2", "left_hand": "T1"})
    assert trials.classes == ("right_hand", "left_hand")
    assert trials.labels.tolist() == [1, 0] * 5
    assert trials.labels.dtype == trials.run.dtype == np.int64 and trials.trials.dtype == np.float32


def test_labelled_recordings_are_cut_into_windows(tmp_path: Path) -> None:
    for index, name in enumerate(("rest1", "rest2", "task1", "task2")):
        save(make_raw(seconds=10.0, seed=index, labels=(), onsets=()), tmp_path / "anna" / f"{name}_raw.fif")
    save(make_raw(), tmp_path / "anna" / "unlabelled_raw.fif")
    table = tmp_path / "labels.csv"
    rows = ["anna/rest1_raw.fif,rest", "rest2_raw.fif,rest", "task1_raw.fif,task", "task2_raw.fif,task"]
    table.write_text("\n".join(["file,label", *rows]))
    (trials,) = eeg_folder(tmp_path, labels_csv=table, windows=(2.0, 1.0), band=None)
    assert trials.windowed and trials.classes == ("rest", "task")
    assert trials.trials.shape == (36, 4, 320)
    assert trials.labels.tolist() == [0] * 18 + [1] * 18
    assert np.bincount(trials.run).tolist() == [9] * 4
    expected = make_raw(seconds=10.0, seed=2).get_data()[[2, 0, 1, 3], 480:800] * 1e6  # its fourth window
    assert np.allclose(trials.trials[18 + 3], expected, rtol=1e-5)
    (named,) = eeg_folder(tmp_path, labels_csv=table, windows=(2.0, 2.0), events={"busy": "task", "idle": "rest"})
    assert named.classes == ("busy", "idle") and named.labels.tolist() == [1] * 10 + [0] * 10
    (resampled,) = eeg_folder(tmp_path, labels_csv=table, windows=(2.0, 2.0), resample=100.0)
    assert resampled.trials.shape == (20, 4, 200)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\nx,rest", "has columns"),
        ("file,label\nnothing.fif,rest", "line 2: 'nothing.fif' is not in data.path"),
        ("file,label\nx_raw.fif,rest\nx_raw.fif,rest", "line 3: 'x_raw.fif' has a label already"),
        ("file,label\nx_raw.fif,", "line 2: 'x_raw.fif' has no label"),
        ("file,label\nx_raw.fif,other", "a/x_raw.fif has label 'other', which is none of"),
        ("file,label\n", "labels no recording"),
    ],
)
def test_a_faulty_table_of_labels_is_refused(tmp_path: Path, content: str, message: str) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    table = tmp_path / "labels.csv"
    table.write_text(content)
    with pytest.raises(FedgeoError, match=message):
        eeg_folder(tmp_path, labels_csv=table, windows=(1.0, 1.0), events={"rest": "rest", "task": "task"})


def test_windows_and_labels_need_each_other(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    (tmp_path / "labels.csv").write_text("file,label\nx_raw.fif,rest\n")
    with pytest.raises(FedgeoError, match="needs data.windows"):
        eeg_folder(tmp_path, labels_csv=tmp_path / "labels.csv", events={"rest": "rest", "task": "task"})
    with pytest.raises(FedgeoError, match="data.windows is for labelled recordings"):
        eeg_folder(tmp_path, events=EVENTS, windows=(1.0, 1.0))
    with pytest.raises(FedgeoError, match="is not a file"):
        eeg_folder(tmp_path, labels_csv=tmp_path / "none.csv", windows=(1.0, 1.0))
    with pytest.raises(FedgeoError, match="45.0 s long, less than one window of 60 s"):
        eeg_folder(
            tmp_path,
            labels_csv=tmp_path / "labels.csv",
            windows=(60.0, 1.0),
            events={"rest": "rest", "task": "task"},
        )


def test_the_cache_follows_content_and_settings(tmp_path: Path) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    file = save(make_raw(), folder / "a" / "x_raw.fif")
    (fresh,) = eeg_folder(folder, events=EVENTS)
    (stored,) = eeg_folder(folder, events=EVENTS, cache=cache)
    (again,) = eeg_folder(folder, events=EVENTS, cache=cache)
    assert isinstance(again.trials, np.memmap)
    assert np.array_equal(stored.trials, fresh.trials) and np.array_equal(again.trials, fresh.trials)
    assert (again.labels.tolist(), again.notes, again.classes) == (
        fresh.labels.tolist(),
        fresh.notes,
        fresh.classes,
    )
    assert len(list(cache.iterdir())) == 1
    (swapped,) = eeg_folder(folder, events=dict(reversed(EVENTS.items())), cache=cache)
    assert swapped.classes == ("right_hand", "left_hand")
    eeg_folder(folder, events=EVENTS, window=(0.0, 2.0), cache=cache)
    assert len(list(cache.iterdir())) == 3
    save(make_raw(seed=1), file)
    (changed,) = eeg_folder(folder, events=EVENTS, cache=cache)
    assert not np.array_equal(changed.trials, fresh.trials)


# --- real recordings


def test_real_recordings_can_be_told_apart(test_data: Path) -> None:
    """Tangent space and logistic regression within subjects reach the known scores."""
    subjects = eeg_folder(test_data / "eeg", events=EVENTS, runs=[4, 8, 12], subjects=[1, 7, 15, 42])
    assert [subject.subject for subject in subjects] == ["S001", "S007", "S015", "S042"]
    assert all(subject.trials.shape == (45, 64, 481) and subject.rate == 160.0 for subject in subjects)
    model = make_pipeline(Covariances("oas"), TangentSpace(), LogisticRegression(max_iter=1000))
    scores = {}
    for subject in subjects:
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        predicted = cross_val_predict(model, subject.trials.astype(float), subject.labels, cv=folds)
        scores[subject.subject] = f1_score(subject.labels, predicted, average="macro")
    assert scores["S007"] > 0.85 and scores["S042"] > 0.75
    assert np.mean(list(scores.values())) > 0.75


def test_a_real_recording_against_mne(test_data: Path) -> None:
    """The same trials by mne's own calls, one recording at a time."""
    folder = test_data / "eeg" / "MNE-eegbci-data" / "files" / "eegmmidb" / "1.0.0" / "S007"
    (trials,) = eeg_folder(folder, events=EVENTS, runs=[8], window=(0.5, 2.5))
    raw = mne.io.read_raw_edf(folder / "S007R08.edf", preload=True, verbose="ERROR")
    raw.rename_channels(lambda name: name.strip("."))
    raw.filter(8, 32, method="iir", verbose="ERROR")
    events, _ = mne.events_from_annotations(raw, {"T1": 10, "T2": 20}, verbose="ERROR")
    epochs = mne.Epochs(raw, events, tmin=0.5, tmax=2.5, baseline=None, preload=True, verbose="ERROR")
    order = [next(n for n in raw.ch_names if n.casefold() == name.casefold()) for name in trials.channels]
    assert np.allclose(trials.trials, epochs.get_data(picks=order, units="uV"), rtol=1e-5, atol=1e-4)
    assert trials.labels.tolist() == [code // 10 - 1 for code in epochs.events[:, 2]]
