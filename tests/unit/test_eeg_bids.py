"""BIDS folders, written by mne-bids itself."""

from pathlib import Path

import mne_bids
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.bids import eeg_bids
from app.data.eeg.folder import eeg_folder
from app.data.eeg.text_tables import JUDGED
from tests.eeg_files import EVENTS, make_raw, save, take_records_out

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def bids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Subjects 02 and 10 with two runs of the task imagery, 10 with one of rest as well; C3 of 02 is marked
    bad."""
    root = tmp_path_factory.mktemp("bids")
    for subject, task, run, seed in (
        ("10", "imagery", "01", 1), ("10", "imagery", "02", 2), ("10", "rest", "01", 3),
        ("02", "imagery", "01", 4), ("02", "imagery", "02", 5),
    ):  # fmt: skip
        raw = make_raw(seed=seed)
        raw.info["line_freq"] = 50
        raw.info["bads"] = ["C3"] if subject == "02" else []
        path = mne_bids.BIDSPath(subject=subject, task=task, run=run, datatype="eeg", root=root)
        mne_bids.write_raw_bids(raw, path, format="BrainVision", allow_preload=True, overwrite=True, verbose="ERROR")
    return root


def test_subjects_runs_and_events_are_read(bids: Path, tmp_path: Path) -> None:
    second, first = eeg_bids(bids, task="imagery", events=EVENTS, cache=tmp_path / "cache")
    assert [second.subject, first.subject] == ["02", "10"]  # as participants.tsv lists them
    assert first.labels.tolist() == [0, 1] * 10 and first.run.tolist() == [0] * 10 + [1] * 10
    assert first.recordings[0] == "sub-10/eeg/sub-10_task-imagery_run-01_eeg.vhdr"
    assert "channels marked bad, kept: C3" in second.notes[0] and not first.notes
    save(make_raw(seed=1), tmp_path / "plain" / "10" / "x_raw.fif")
    (plain,) = eeg_folder(tmp_path / "plain", events=EVENTS)
    assert plain.channels == first.channels
    assert np.allclose(first.trials[:10], plain.trials, atol=1e-3)
    (_, again) = eeg_bids(bids, task="imagery", events=EVENTS, cache=tmp_path / "cache")
    assert isinstance(again.trials, np.memmap) and np.array_equal(again.trials, first.trials)


def test_subjects_and_runs_are_chosen(bids: Path) -> None:
    (one,) = eeg_bids(bids, task="imagery", events=EVENTS, subjects=[2], runs=[2])
    assert one.subject == "02" and len(one) == 10 and "run-02" in one.recordings[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "rest"}, "subject 02 of participants.tsv has no EEG of task 'rest'"),
        ({"task": "imagery", "runs": [3]}, r"subject 02 of participants.tsv has no EEG.*among runs \[3\]"),
        ({"task": "imagery", "subjects": ["99"]}, "subject 99 is not among 02, 10"),
        (
            {"task": "imagery", "events": {"left": "left", "right": "T2x"}},
            "subject 02, sub-02/eeg/.*none of the annotations",
        ),
    ],
)
def test_what_is_not_there_is_named(bids: Path, arguments: dict, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        eeg_bids(bids, **({"events": EVENTS} | arguments))


def test_a_folder_without_participants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="no participants.tsv"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)
    (tmp_path / "participants.tsv").write_text("name\nanna\n")
    with pytest.raises(FedgeoError, match="expected a column participant_id"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)


def test_a_truncated_recording_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = mne_bids.BIDSPath(subject="1", task="imagery", datatype="eeg", root=tmp_path)
    mne_bids.write_raw_bids(make_raw(), path, format="EDF", allow_preload=True, verbose="ERROR")
    (file,) = tmp_path.glob("sub-1/eeg/*.edf")
    file.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(FedgeoError, match=f"subject 1, .*cut short.*copy {file} again"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)


def events_table(root: Path) -> Path:
    """The table of the only recording of a new folder, one subject's."""
    path = mne_bids.BIDSPath(subject="1", task="imagery", datatype="eeg", root=root)
    mne_bids.write_raw_bids(make_raw(), path, format="BrainVision", allow_preload=True, verbose="ERROR")
    (table,) = root.glob("sub-1/eeg/*_events.tsv")
    return table


def test_a_sample_that_is_not_at_its_onset_is_refused(tmp_path: Path) -> None:
    table = events_table(tmp_path)
    text = table.read_text()
    table.write_text(text.replace("\t960", "\t961"))  # numbered from 1
    assert len(eeg_bids(tmp_path, task="imagery", events=EVENTS)[0]) == 10
    table.write_text(text.replace("\t960", "\t1000"))
    with pytest.raises(FedgeoError, match=r"events.tsv, line 3: sample 1000 is at 6.250 s, onset says 6 s \(160 Hz\)"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)


def test_a_splice_in_the_file_counts_though_the_table_has_none(tmp_path: Path) -> None:
    table = events_table(tmp_path)
    (markers,) = table.parent.glob("*.vmrk")
    markers.write_text(markers.read_text() + "Mk99=New Segment,,1121,1,0\n")  # at 7 s, within the second trial
    (trials,) = eeg_bids(tmp_path, task="imagery", events=EVENTS)
    assert len(trials) == 9 and "1 of 10 trials dropped (across a splice)" in trials.notes[0]


def test_a_recording_with_gaps_is_refused(tmp_path: Path) -> None:
    path = mne_bids.BIDSPath(subject="1", task="imagery", datatype="eeg", root=tmp_path)
    mne_bids.write_raw_bids(make_raw(), path, format="EDF", allow_preload=True, verbose="ERROR")
    take_records_out(next(tmp_path.glob("sub-1/eeg/*.edf")), 11, 17)
    with pytest.raises(FedgeoError, match=r"recorded with gaps \(EDF\+D\).*data=eeg_folder"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig"])
def test_tables_in_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    """A class and a unit with letters beyond ASCII."""
    events_table(tmp_path)
    recoded = 0
    for table in tmp_path.rglob("*.tsv"):
        text = table.read_text(encoding="utf-8-sig").replace("T1", "links-für").replace("\tmV\t", "\tµV\t")
        table.write_bytes(text.encode(encoding))
        recoded += "ü" in text
    (trials,) = eeg_bids(tmp_path, task="imagery", events={"left": "links-für", "right": EVENTS["right_hand"]})
    assert recoded and set(trials.labels.tolist()) == {0, 1} and not trials.notes


def test_a_table_that_turns_latin_1_late_is_named(tmp_path: Path) -> None:
    events_table(tmp_path)
    table = tmp_path / "sub-1/eeg/sub-1_task-imagery_events.tsv"
    filler = "".join(f"{k}\t1\tfiller\n" for k in range(JUDGED // 8))
    table.write_bytes(table.read_bytes() + filler.encode() + "1\t1\tMüller\n".encode("latin-1"))
    with pytest.raises(FedgeoError, match=rf"{table}, line \d+: not UTF-8, as the table is before"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)
