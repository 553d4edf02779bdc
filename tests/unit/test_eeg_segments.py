"""Gaps and splices: no trial, no filter and no resampling reaches over one, and events stay where they belong."""

from pathlib import Path

import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.edf_records import Discontinuous, Stretch, discontinuous, mapped
from app.data.eeg.filters import Filters
from app.data.eeg.folder import eeg_folder
from app.data.eeg.segments import Segment, segments
from app.data.eeg.trials import Trials
from tests.eeg_files import EVENTS, make_raw, save, take_records_out

RATE = 160


def read(folder: Path, **settings: object) -> Trials:
    (trials,) = eeg_folder(folder, **({"events": EVENTS, "window": (0.0, 2.0)} | settings))  # type: ignore[arg-type]
    return trials


@pytest.mark.parametrize("suffix", [".edf", ".bdf"])
@pytest.mark.parametrize("band", [None, (8.0, 32.0)])
def test_trials_after_a_gap_are_those_of_the_same_clock_time(
    tmp_path: Path, suffix: str, band: tuple[float, float] | None
) -> None:
    """Seconds 11 to 17 are gone: the event at 10 s reaches into the gap, that at 14 s lies in it."""
    save(make_raw(), tmp_path / "whole" / f"x{suffix}")
    take_records_out(save(make_raw(), tmp_path / "gap" / f"x{suffix}"), 11, 17)
    whole, gap = read(tmp_path / "whole", band=band), read(tmp_path / "gap", band=band)
    kept = [0, 1, 4, 5, 6, 7, 8, 9]
    assert gap.labels.tolist() == whole.labels[kept].tolist()
    far = slice(None) if band is None else slice(3, None)  # the filter's own edge lies at the gap
    assert np.abs(gap.trials[far] - whole.trials[kept][far]).max() < 0.01
    assert gap.notes[0].endswith("recorded with 1 gap, which no trial crosses")
    assert any("1 of 9 trials dropped (across a splice)" in note for note in gap.notes)


def test_annotations_are_brought_from_the_clock_to_their_samples() -> None:
    rows = ((1.0, 0.5, "T1"), (12.0, 1.0, "T2"), (18.5, 0.0, "T1"), (10.0, 9.0, "BAD_move"))
    placed, lost = mapped(Discontinuous((Stretch(0, 0, 11), Stretch(17, 11, 28)), rows))
    assert lost == ["T2"]
    told = {(a["onset"], a["duration"], a["description"]) for a in placed}
    marked = {(10.0, 1.0, "BAD_move"), (11.0, 2.0, "BAD_move")}  # on both sides of the gap
    assert told == {(1.0, 0.5, "T1"), (12.5, 0.0, "T1"), (11.0, 0.0, "EDGE boundary"), *marked}


def test_the_records_of_a_gap_are_found(tmp_path: Path) -> None:
    found = discontinuous(take_records_out(save(make_raw(), tmp_path / "a" / "x.edf"), 11, 17), RATE)
    assert found is not None and found.stretches == (Stretch(0, 0, 11), Stretch(17, 11, 28))


def test_a_file_whose_records_follow_each_other_has_no_gap(tmp_path: Path) -> None:
    file = save(make_raw(), tmp_path / "a" / "x.edf")
    before = read(tmp_path)
    take_records_out(file, 5, 5)  # says EDF+D, and has all its records
    assert discontinuous(file, RATE) is None
    after = read(tmp_path)
    assert np.array_equal(before.trials, after.trials) and after.notes == ()


def test_records_that_go_back_in_time_are_refused(tmp_path: Path) -> None:
    file = take_records_out(save(make_raw(), tmp_path / "a" / "x.edf"), 11, 17)
    file.write_bytes(file.read_bytes().replace(b"+20\x14\x14", b"+10\x14\x14"))
    with pytest.raises(FedgeoError, match="record 15 begins at 10 s, before the one ahead of it has ended"):
        read(tmp_path)


SPLICES = [
    ("x.set", "boundary", 5 * RATE - 0.5, 7.0),
    ("x.set", "-99", 5 * RATE, 0.0),
    ("x_raw.fif", "boundary", 5 * RATE, 0.0),
    ("x_raw.fif", "EDGE boundary", 5 * RATE, 0.0),
]


@pytest.mark.parametrize(("name", "text", "sample", "cut"), SPLICES)
def test_a_splice_moves_no_event_and_costs_the_trial_across_it(
    tmp_path: Path, name: str, text: str, sample: float, cut: float
) -> None:
    """At 5 s, within the trial 4.5 to 6.5 s that the second event begins; what was cut out took no clock time."""
    raw = make_raw(onsets=tuple(range(2, 42, 4)))
    raw.annotations.onset[1] = 4.5
    save(raw, tmp_path / "whole" / name)
    raw.annotations.append(sample / RATE, cut, text)
    save(raw, tmp_path / "spliced" / name)
    whole, spliced = read(tmp_path / "whole", band=None), read(tmp_path / "spliced", band=None)
    assert np.array_equal(spliced.trials, np.delete(whole.trials, 1, axis=0))
    assert spliced.labels.tolist() == np.delete(whole.labels, 1).tolist()
    assert spliced.notes == (f"{name}: 1 of 10 trials dropped (across a splice)",)


def test_only_a_later_new_segment_is_a_splice(tmp_path: Path) -> None:
    file = save(make_raw(), tmp_path / "a" / "x.vhdr")
    events = {name: f"Comment/{text}" for name, text in EVENTS.items()}
    markers = file.with_suffix(".vmrk")
    first, rest = markers.read_text().split("Mk1=", 1)
    markers.write_text(f"{first}Mk1=New Segment,,1,1,0,20240131120000000000\nMk99={rest}")
    assert len(read(tmp_path, events=events)) == 10
    markers.write_text(markers.read_text() + "Mk100=New Segment,,1121,1,0,20240131120500000000\n")
    spliced = read(tmp_path, events=events)  # at 7 s, within the second trial
    assert spliced.labels.tolist() == [0, *[0, 1] * 4]
    assert spliced.notes == ("a/x.vhdr: 1 of 10 trials dropped (across a splice)",)


def test_a_skip_of_fif_keeps_the_clock(tmp_path: Path) -> None:
    raw = make_raw()
    raw._data[:, 11 * RATE : 17 * RATE] = 0
    save(raw, tmp_path / "skip" / "x_raw.fif")
    raw.annotations.append(11.0, 6.0, "BAD_ACQ_SKIP")
    assert segments(raw) == (Segment(0, 11 * RATE), Segment(17 * RATE, raw.n_times))
    save(raw, tmp_path / "skip" / "x_raw.fif")
    save(make_raw(), tmp_path / "whole" / "x_raw.fif")
    skip, whole = read(tmp_path / "skip", band=None), read(tmp_path / "whole", band=None)
    assert np.array_equal(skip.trials, np.delete(whole.trials, [2, 3], axis=0))
    assert skip.notes == ("x_raw.fif: 2 of 10 trials dropped (BAD_ACQ_SKIP)",)


def test_a_segment_is_filtered_and_resampled_as_if_alone(tmp_path: Path) -> None:
    """A step of 10 mV at the splice rings through neither side, and trials equal those of the second part alone."""
    raw = make_raw()
    second = raw.copy().crop(tmin=20.0)
    raw._data[:, 20 * RATE :] += 0.01
    second._data += 0.01
    raw.annotations.append(20.0, 0.0, "EDGE boundary")
    save(raw, tmp_path / "both" / "x_raw.fif")
    save(second, tmp_path / "second" / "x_raw.fif")
    settings = {"resample": 100.0, "notch": 50.0}
    both, alone = read(tmp_path / "both", **settings), read(tmp_path / "second", **settings)
    assert both.rate == alone.rate == 100.0 and len(alone) == 5
    assert np.array_equal(both.trials[-5:], alone.trials)
    assert np.abs(both.trials).max() < 100


def test_a_segment_shorter_than_the_filters_is_dropped(tmp_path: Path) -> None:
    raw = make_raw()
    raw.annotations.append([9.0, 13.0], [0.0, 0.0], ["boundary", "boundary"])
    save(raw, tmp_path / "a" / "x_raw.fif")
    assert len(read(tmp_path)) == 10  # 4 s are enough for the band-pass
    assert Filters(notch=50.0).length(RATE) > 4 * RATE > Filters().length(RATE)
    notched = read(tmp_path, notch=50.0)
    assert len(notched) == 9
    assert notched.notes == ("a/x_raw.fif: 1 of 10 trials dropped (in a segment shorter than the filters)",)


def test_windows_do_not_cross_a_splice_either(tmp_path: Path) -> None:
    for seed, name in enumerate(("rest1", "rest2", "task1", "task2")):
        raw = make_raw(seed=seed, seconds=10.0, labels=(), onsets=())
        raw.annotations.append(5.0, 0.0, "boundary")
        save(raw, tmp_path / "anna" / f"{name}_raw.fif")
    rows = [f"{name}_raw.fif,{name[:4]}" for name in ("rest1", "rest2", "task1", "task2")]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    trials = read(tmp_path, events=None, labels_csv=tmp_path / "labels.csv", windows=(2.0, 2.0))
    assert np.bincount(trials.run).tolist() == [4] * 4  # of five windows that of 4 to 6 s is gone
