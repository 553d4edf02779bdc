"""Recordings that cannot be used: refused by subject, file and channel, or handled and reported."""

from pathlib import Path

import mne
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.folder import eeg_folder
from tests.eeg_files import CHANNELS, EVENTS, make_raw, save


def refused(path: Path, *parts: str, **arguments: object) -> None:
    """Reading must fail with one line that holds all the parts."""
    with pytest.raises(FedgeoError) as caught:
        eeg_folder(path, **({"events": EVENTS} | arguments))  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def good_beside(tmp_path: Path, raw: mne.io.BaseRaw, name: str = "x_raw.fif") -> Path:
    """A folder of a good subject and a subject ``bad``."""
    save(make_raw(seed=5), tmp_path / "good" / "x_raw.fif")
    return save(raw, tmp_path / "bad" / name)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, value: float) -> None:
    raw = make_raw()
    raw._data[CHANNELS.index("C3"), 5000] = value
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "channel C3 holds values that are not numbers")


def test_a_flat_channel_is_refused(tmp_path: Path) -> None:
    raw = make_raw()
    raw._data[CHANNELS.index("Oz")] = 3e-6
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "channel Oz is flat in 10 of 10 trials")


def test_a_channel_that_goes_flat_for_a_trial_is_refused(tmp_path: Path) -> None:
    raw = make_raw()
    raw._data[CHANNELS.index("Oz"), 160 * 10 : 160 * 14] = 0.0
    good_beside(tmp_path, raw)
    refused(tmp_path, "channel Oz is flat in 1 of 10 trials", "BAD_")
    (trials,) = eeg_folder(tmp_path, events=EVENTS, subjects=["bad"], channels=["C3", "C4"])
    assert len(trials) == 10


@pytest.mark.parametrize(
    ("factor", "advice"), [(1e6, "data.scale by 1e-06"), (1e-6, "data.scale by 1e+06"), (1e3, "data.scale by 0.001")]
)
def test_another_unit_is_refused_with_the_likely_factor(tmp_path: Path, factor: float, advice: str) -> None:
    raw = make_raw()
    raw._data *= factor
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "expected 1 to 100", advice)
    scale = float(advice.split()[-1])
    (mended,) = eeg_folder(tmp_path, events=EVENTS, subjects=["bad"], scale=scale)
    save(make_raw(), tmp_path / "same" / "x_raw.fif")
    (same,) = eeg_folder(tmp_path, events=EVENTS, subjects=["same"])
    assert np.allclose(mended.trials, same.trials, rtol=1e-5, atol=1e-5)


def test_an_unusual_size_is_noted_but_a_drift_is_not_a_unit(tmp_path: Path) -> None:
    raw = make_raw()
    raw._data *= 10
    save(raw, tmp_path / "loud" / "x_raw.fif")
    drifting = make_raw()
    drifting._data += np.linspace(0, 0.005, drifting.n_times)  # a slow drift of 5 mV, as DC amplifiers have
    save(drifting, tmp_path / "drifting" / "x_raw.fif")
    drift, loud = eeg_folder(tmp_path, events=EVENTS)
    assert loud.notes == ("loud/x_raw.fif: unusual size: a channel's standard deviation is 198 microvolt",)
    assert drift.notes == ()


def test_two_sampling_rates_are_refused_unless_resampled(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "S01" / "x_raw.fif")
    save(make_raw(rate=128.0), tmp_path / "S88" / "x_raw.fif")
    refused(tmp_path, "subject S88", "S88/x_raw.fif", "128 Hz", "160 Hz", "data.resample=128")
    assert [len(subject) for subject in eeg_folder(tmp_path, events=EVENTS, resample=128.0)] == [10, 10]


def test_a_missing_channel_is_refused_by_name(tmp_path: Path) -> None:
    raw = make_raw().drop_channels(["C3"])
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "no channel C3", "good/x_raw.fif", "data.channels=common")
    refused(tmp_path, "no channel Cz", channels=["C4", "Cz"])
    refused(tmp_path, "give all, common or a list", channels="some")


def test_two_channels_of_one_name_are_refused(tmp_path: Path) -> None:
    raw = make_raw(channels=("C3", "EEG C3-REF", "Oz"))
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "'C3' and 'EEG C3-REF' are both channel C3")


def test_no_eeg_channel_is_refused(tmp_path: Path) -> None:
    good_beside(tmp_path, make_raw(channels=("EOG1", "ECG")))
    refused(tmp_path, "subject bad", "no EEG channel among ['ECG', 'EOG1']")


def test_no_event_is_refused_with_those_there_are(tmp_path: Path) -> None:
    good_beside(tmp_path, make_raw(labels=("T0", "rest") * 5))
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "none of the annotations ['T1', 'T2']", "['T0', 'rest']")
    save(make_raw(labels=(), onsets=()), tmp_path / "bad" / "x_raw.fif")
    refused(tmp_path, "subject bad", "it has none at all")


def test_no_mapping_is_refused_with_the_annotations(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    refused(tmp_path, "data.events is not set", "['T1', 'T2']", events=None)
    refused(tmp_path, "two classes or more", events={"left": "T1"})
    refused(tmp_path, "each its own annotation", events={"left": "T1", "right": "T1"})


def test_two_classes_at_once_are_refused(tmp_path: Path) -> None:
    raw = make_raw()
    raw.annotations.append(6.0, 0.0, "T1")  # a T2 is there already
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "two classes have an event at 6.000 s")


@pytest.mark.parametrize("name", ["x.edf", "x.bdf", "x.gdf", "x_raw.fif", "x.vhdr", "x.set"])
def test_a_truncated_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    codes = ("1", "2") if name.endswith(".gdf") else ("T1", "T2")
    file = save(make_raw(labels=codes * 5), tmp_path / "bad" / name)
    data = file.with_suffix(".eeg") if file.suffix == ".vhdr" else file
    data.write_bytes(data.read_bytes()[: data.stat().st_size * 6 // 10])
    prefix = "Comment/" if file.suffix == ".vhdr" else ""
    events = {"left": prefix + codes[0], "right": prefix + codes[1]}
    refused(tmp_path, "subject bad", f"bad/{name}", f"copy {file} again", events=events)


def test_a_file_cut_within_its_header_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = save(make_raw(), tmp_path / "bad" / "x.edf")
    file.write_bytes(file.read_bytes()[:300])
    refused(tmp_path, f"copy {file} again", "header is not complete")
    file.write_bytes(b"")
    refused(tmp_path, f"copy {file} again")
    file.rename(file.with_suffix(".gdf"))
    refused(tmp_path, f"copy {file.with_suffix('.gdf')} again", "header is not complete")


def test_a_recorder_that_was_never_stopped_is_no_fault(tmp_path: Path) -> None:
    """Its header says -1 records; the length of the file counts then."""
    file = save(make_raw(), tmp_path / "a" / "x.edf")
    content = file.read_bytes()
    file.write_bytes(content[:236] + b"-1".ljust(8) + content[244:])
    assert len(eeg_folder(tmp_path, events=EVENTS)[0]) == 10


def test_a_fault_of_all_recordings_is_told_once(tmp_path: Path) -> None:
    for run in (1, 2):
        raw = make_raw(seed=run).set_eeg_reference("average", verbose="ERROR")
        save(raw, tmp_path / "a" / f"run{run}_raw.fif")
    (trials,) = eeg_folder(tmp_path, events=EVENTS)
    assert trials.notes == ("all recordings: average reference: covariances have rank 3 of 4",)


def test_average_reference_is_reported(tmp_path: Path) -> None:
    raw = make_raw().set_eeg_reference("average", verbose="ERROR")
    save(raw, tmp_path / "a" / "x.edf")  # 16 bits: the sum is zero up to rounding
    save(make_raw(), tmp_path / "b" / "x.edf")
    averaged, plain = eeg_folder(tmp_path, events=EVENTS)
    assert averaged.average_reference and not plain.average_reference
    assert averaged.notes == ("a/x.edf: average reference: covariances have rank 3 of 4",)
    values = np.linalg.eigvalsh(np.cov(averaged.trials[0]))
    assert values[0] < 1e-3 * values[1]


def test_a_subject_without_a_class_is_kept_and_reported(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x_raw.fif")
    save(make_raw(labels=("T1",) * 10), tmp_path / "b" / "x_raw.fif")
    whole, half = eeg_folder(tmp_path, events=EVENTS)
    assert half.notes == ("no trial of class right_hand (T2); its annotations: T1",)
    assert half.classes == whole.classes and set(half.labels) == {0}


def test_a_recording_of_bad_segments_alone_is_refused(tmp_path: Path) -> None:
    raw = make_raw()
    raw.annotations.append(0.0, 45.0, "BAD_all")
    good_beside(tmp_path, raw)
    refused(tmp_path, "subject bad", "bad/x_raw.fif", "no trial is left", "10 of 10 trials dropped (BAD_all)")


def test_a_band_above_the_sampling_rate_is_refused(tmp_path: Path) -> None:
    save(make_raw(rate=50.0), tmp_path / "a" / "x_raw.fif")
    refused(tmp_path, "subject a", "8-32 Hz needs more than 64 Hz sampling, it has 50")
    refused(tmp_path, "two rising frequencies", band=(32.0, 8.0))
    refused(tmp_path, "must end after it starts", window=(3.0, 0.0))


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "holds no recording")
    refused(tmp_path / "none", "is not a folder")
    (tmp_path / "x.edf").mkdir()
    refused(tmp_path, "holds no recording")
