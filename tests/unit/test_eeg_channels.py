"""Channels that are not what scalp EEG is, and what can be done about them: by channel, by subject, by reference."""

from collections.abc import Callable
from pathlib import Path

import mne
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.channel_quality import typical_spread, unlike
from app.data.eeg.folder import eeg_folder
from app.data.eeg.trials import Trials
from tests.eeg_files import EVENTS, make_raw, save

CHANNELS = ("Fz", "C3", "Cz", "C4", "Pz", "Oz")


def scalp(seed: int = 0) -> mne.io.RawArray:
    """Neighbouring channels alike, as a scalp has them."""
    raw = make_raw(channels=CHANNELS, seed=seed)
    raw._data[:] = 0.5 * raw._data + 0.8 * raw._data.mean(axis=0) * len(CHANNELS) ** 0.5
    return raw


def spoil(raw: mne.io.RawArray, channel: str, change: Callable[[np.ndarray], np.ndarray]) -> mne.io.RawArray:
    place = CHANNELS.index(channel)
    raw._data[place] = change(raw._data[place])
    return raw


def railed(row: np.ndarray) -> np.ndarray:
    """Half of the time at the upper end of its range."""
    return np.where(np.sin(np.arange(len(row)) / 300) > 0, 40e-6, row)


ODD: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
    (lambda row: row / row.std() * 1e-9, "has a standard deviation of 0.00"),
    (lambda row: 2000e-6 * np.random.default_rng(9).standard_normal(len(row)), "has a standard deviation of 2"),
    (lambda row: row * 1e3, "microvolt, the others of"),
    (lambda row: row * 1e6, "microvolt, the others of"),
    (lambda row: 0 * row + 3e-3, "is flat in 10 of 10 trials"),
    (railed, "is stuck: 5"),
    (lambda row: np.where(np.arange(len(row)) == 5000, np.nan, row), "holds values that are not numbers"),
]


@pytest.mark.parametrize(("change", "message"), ODD)
def test_one_channel_unlike_the_rest_is_refused_by_file_and_channel(
    tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    for seed, name in enumerate(("a", "b", "c")):
        save(scalp(seed), tmp_path / name / "x_raw.fif")
    save(spoil(scalp(3), "C3", change), tmp_path / "d" / "x_raw.fif")
    with pytest.raises(FedgeoError) as caught:
        eeg_folder(tmp_path, events=EVENTS)
    text = str(caught.value)
    assert text.startswith("subject d, d/x_raw.fif: channel C3 ") and message in text
    assert "data.bad_channels=drop or interpolate" in text and "\n" not in text


@pytest.mark.parametrize(("change", "message"), ODD)
def test_it_can_be_left_out_of_all_or_interpolated(
    tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    save(scalp(0), tmp_path / "a" / "x_raw.fif")
    save(spoil(scalp(1), "C3", change), tmp_path / "b" / "x_raw.fif")
    whole = read(tmp_path, "a")
    for trials in eeg_folder(tmp_path, events=EVENTS, bad_channels="drop"):
        assert trials.channels == ("C4", "Cz", "Fz", "Oz", "Pz")
        assert np.isfinite(trials.trials).all()
        if trials.subject == "a":
            assert np.array_equal(trials.trials, np.delete(whole.trials, 0, axis=1))
        else:
            assert trials.notes[0].startswith("b/x_raw.fif: channel C3 ") and message in trials.notes[0]
            assert "left out of all recordings" in trials.notes[0]
    for trials in eeg_folder(tmp_path, events=EVENTS, bad_channels="interpolate"):
        assert trials.channels == ("C3", "C4", "Cz", "Fz", "Oz", "Pz")
        if trials.subject == "a":
            assert np.array_equal(trials.trials, whole.trials)
        else:
            clean = scalp(1).filter(8, 32, method="iir", verbose="ERROR").get_data()[CHANNELS.index("C3")] * 1e6
            found = np.concatenate(list(trials.trials[:, 0]))
            truth = np.concatenate([clean[160 * t : 160 * t + 481] for t in range(2, 42, 4)])
            assert np.corrcoef(found, truth)[0, 1] > 0.7
            assert any("channels interpolated: C3" in note for note in trials.notes)


def read(folder: Path, subject: str, **settings: object) -> Trials:
    (trials,) = eeg_folder(folder, events=EVENTS, subjects=[subject], **settings)  # type: ignore[arg-type]
    return trials


def test_channels_marked_bad_are_kept_left_out_or_interpolated(tmp_path: Path) -> None:
    raw = scalp()
    raw.info["bads"] = ["Cz"]
    save(raw, tmp_path / "a" / "x_raw.fif")
    kept = read(tmp_path, "a")
    assert kept.notes == ("a/x_raw.fif: channels marked bad, kept: Cz",) and "Cz" in kept.channels
    dropped = read(tmp_path, "a", bad_channels="drop")
    assert "Cz" not in dropped.channels
    assert dropped.notes[0] == "a/x_raw.fif: channel Cz is marked bad: left out of all recordings"
    made_up = read(tmp_path, "a", bad_channels="interpolate")
    assert made_up.channels == kept.channels
    place = kept.channels.index("Cz")
    assert not np.allclose(made_up.trials[:, place], kept.trials[:, place])
    assert np.array_equal(np.delete(made_up.trials, place, axis=1), np.delete(kept.trials, place, axis=1))


def test_what_has_no_place_on_the_head_is_not_interpolated(tmp_path: Path) -> None:
    raw = scalp().rename_channels({name: f"E{number}" for number, name in enumerate(CHANNELS, start=1)})
    raw.info["bads"] = ["E2"]
    save(raw, tmp_path / "a" / "x_raw.fif")
    with pytest.raises(FedgeoError, match=r"subject a, .*E2 cannot be made up.*no place in the 10-05.*data.rename"):
        read(tmp_path, "a", bad_channels="interpolate")
    names = {f"E{number}": name for number, name in enumerate(CHANNELS, start=1)}
    assert read(tmp_path, "a", bad_channels="interpolate", rename=names).channels == tuple(sorted(CHANNELS))


def test_of_two_channels_the_one_unlike_eeg_is_named() -> None:
    raw = make_raw(channels=("C3", "C4"))
    raw._data[0] *= 1e3
    assert list(unlike(raw, 1e6)[0]) == ["C3"]
    raw._data[0] /= 1e6
    assert list(unlike(raw, 1e6)[0]) == ["C3"]
    assert unlike(make_raw(channels=("C3",)), 1e6) == ({}, {})


def test_a_loud_channel_is_noted_and_a_spread_of_scalp_sizes_is_not(tmp_path: Path) -> None:
    raw = scalp()
    raw._data[0] *= 16
    raw._data[1] *= 5
    raw._data[2] /= 4
    bad, strange = unlike(raw, 1e6)
    assert not bad and list(strange) == ["Fz"]


def test_the_size_of_a_recording_without_any_movement_is_none() -> None:
    raw = make_raw()
    raw._data[:] = 1e-6
    assert np.isnan(typical_spread(raw, 1e6))


@pytest.mark.parametrize("key", ["b", "B"])
def test_a_unit_is_mended_for_one_subject(tmp_path: Path, key: str) -> None:
    for seed, name in enumerate(("a", "b")):
        save(scalp(seed), tmp_path / "good" / name / "x_raw.fif")
        raw = scalp(seed)
        raw._data *= 1e-3 if name == "b" else 1
        save(raw, tmp_path / "off" / name / "x_raw.fif")
    with pytest.raises(FedgeoError, match=r"subject b, .*of this subject alone: data.scale={b: 1000}"):
        eeg_folder(tmp_path / "off", events=EVENTS)
    good = eeg_folder(tmp_path / "good", events=EVENTS)
    mended = eeg_folder(tmp_path / "off", events=EVENTS, scale={key: 1000.0})
    for one, other in zip(good, mended, strict=True):
        assert np.allclose(one.trials, other.trials, rtol=1e-4, atol=1e-4)


def test_an_average_reference_is_made_before_the_filters(tmp_path: Path) -> None:
    """A site that recorded against the average and one that did not come to the same."""
    save(scalp(), tmp_path / "plain" / "x_raw.fif")
    save(scalp().set_eeg_reference("average", verbose="ERROR"), tmp_path / "averaged" / "x_raw.fif")
    averaged, plain = eeg_folder(tmp_path, events=EVENTS)
    assert (averaged.average_reference, plain.average_reference) == (True, False)
    both = [read(tmp_path, name, reference="average") for name in ("averaged", "plain")]
    assert both[0].average_reference and both[1].average_reference
    assert np.allclose(both[0].trials, both[1].trials, atol=1e-4)
    assert np.allclose(both[1].trials.mean(axis=1), 0, atol=1e-4)


def test_names_without_a_place_say_what_to_set(tmp_path: Path) -> None:
    save(scalp(), tmp_path / "a" / "x_raw.fif")
    raw = scalp(1).rename_channels({name: f"E{number}" for number, name in enumerate(CHANNELS, start=1)})
    save(raw, tmp_path / "b" / "x_raw.fif")
    with pytest.raises(FedgeoError) as caught:
        eeg_folder(tmp_path, events=EVENTS)
    assert "E1, E2, E3" in str(caught.value) and "data.rename={E1: " in str(caught.value)
    names = {f"E{number}": name for number, name in enumerate(CHANNELS, start=1)}
    assert len(eeg_folder(tmp_path, events=EVENTS, rename=names)) == 2
