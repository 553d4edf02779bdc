"""BIDS folders, written by mne-bids itself."""

from pathlib import Path

import mne_bids
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.bids import eeg_bids
from app.data.eeg.folder import eeg_folder
from tests.eeg_files import EVENTS, make_raw, save

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


def test_a_truncated_recording_is_named_for_deletion(tmp_path: Path) -> None:
    path = mne_bids.BIDSPath(subject="1", task="imagery", datatype="eeg", root=tmp_path)
    mne_bids.write_raw_bids(make_raw(), path, format="EDF", allow_preload=True, verbose="ERROR")
    (file,) = tmp_path.glob("sub-1/eeg/*.edf")
    file.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(FedgeoError, match=f"subject 1, .*truncated.*delete {file}"):
        eeg_bids(tmp_path, task="imagery", events=EVENTS)
