"""Whose a recording is: two people stay two, one person stays one, or the folder is refused by name."""

from pathlib import Path

import pytest

from app.common.errors import FedgeoError
from app.data.eeg.folder import eeg_folder, find_files
from app.data.eeg.subject_names import name_parts, refuse_ambiguous
from tests.eeg_files import EVENTS, make_raw, save


def subjects(tmp_path: Path, *names: str) -> list[tuple[str, int | None]]:
    """Subject and run of empty files with these paths, in the same order, once none is ambiguous."""
    root = tmp_path / "root"
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    refuse_ambiguous(find_files(root), root)
    return [name_parts(Path(name), root, None) for name in names]


TOLD = [
    (("sub-01/ses-1/rec.edf", "sub-01/ses-2/rec.edf", "sub-02/ses-1/rec.edf"), ["sub-01", "sub-01", "sub-02"]),
    (("sub-a/ses-1/eeg/sub-a_ses-1_task-x_eeg.edf", "sub-b/eeg/sub-b_task-x_eeg.edf"), ["sub-a", "sub-b"]),
    (("all/sub-01_run-1.edf", "all/sub-02_run-1.edf"), ["sub-01", "sub-02"]),
    (("anna/session2/eeg/x.edf", "anna/session_1/x.edf", "ben/x.edf"), ["anna", "anna", "ben"]),
    (("anna/run-01/x.edf", "anna/run-02/x.edf"), ["anna", "anna"]),
    (("anna/2024-01-31/x.edf", "anna/20240201/x.edf"), ["anna", "anna"]),
    (("S01/monday/x.edf", "S01/tuesday/x.edf", "S02/monday/x.edf"), ["S01", "S01", "S02"]),
    (("session1/S01/x.edf", "session2/S01/x.edf", "session1/S02/x.edf"), ["S01", "S01", "S02"]),
    (("S01/s1.edf", "S01/s2.edf"), ["S01", "S01"]),
    (("daytona/x.edf", "recife/x.edf"), ["daytona", "recife"]),
    (("anna/monday/x.edf", "anna/Tuesday/x.edf", "ben/friday/x.edf"), ["anna", "anna", "ben"]),
    (("anna/morning/x.edf", "anna/before_lunch/x.edf", "ben/second/x.edf"), ["anna", "anna", "ben"]),
    (("patients/anna/x.edf", "patients/ben/x.edf", "control-group/cleo/x.edf"), ["anna", "ben", "cleo"]),
    (("data/anna/x.edf", "data/ben/x.edf"), ["anna", "ben"]),
    (("run1.edf", "run2.edf"), ["root", "root"]),
    (("ses-1/x.edf", "ses-2/x.edf"), ["root", "root"]),
    (("eyes_open_1.edf", "eyes_closed_1.edf"), ["root", "root"]),
]


@pytest.mark.parametrize(("names", "expected"), TOLD, ids=lambda value: str(value[0]))
def test_a_path_tells_the_person(tmp_path: Path, names: tuple[str, ...], expected: list[str]) -> None:
    assert [subject for subject, _ in subjects(tmp_path, *names)] == expected


def test_a_run_may_stand_in_a_folders_name(tmp_path: Path) -> None:
    assert subjects(tmp_path, "anna/run-04/x.edf", "anna/x_run8.edf") == [("anna", 4), ("anna", 8)]


AMBIGUOUS = [
    (("anna/1/x.edf", "ben/1/x.edf"), "anna/1, ben/1 would be one subject, 1"),
    (
        ("anna/montag/x.edf", "anna/mittwoch/x.edf", "ben/x.edf"),
        "anna/mittwoch, anna/montag may be one person",
    ),
    (("berlin/sub-01/x.edf", "paris/sub-01/y.edf"), "berlin/sub-01, paris/sub-01 would be one subject, sub-01"),
    (("lab/p7_block1.edf", "lab/p11_block1.edf"), "the recordings of lab tell p11, p7"),
    (("P01/S01/x.edf",), "P01/S01/x.edf lies in the folders P01 and S01"),
    (("sub-01/sub-02_x.edf",), "sub-01/sub-02_x.edf names sub-01 and sub-02"),
    (("anna.edf", "ben.edf"), "the recordings anna.edf, ben.edf lie in one folder"),
    (("1.edf", "2.edf"), "the recordings 1.edf, 2.edf lie in one folder"),
]


@pytest.mark.parametrize(("names", "message"), AMBIGUOUS, ids=lambda value: str(value[0]))
def test_what_could_be_one_person_or_two_is_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(FedgeoError) as caught:
        subjects(tmp_path, *names)
    assert message in str(caught.value) and "data.subject_pattern" in str(caught.value)


def test_a_pattern_ends_the_ambiguity(tmp_path: Path) -> None:
    for seed, name in enumerate(("anna/1", "ben/1")):
        save(make_raw(seed=seed), tmp_path / name / "x_raw.fif")
    read = eeg_folder(tmp_path, events=EVENTS, subject_pattern="^(?P<subject>[^/]+)/")
    assert [(trials.subject, len(trials)) for trials in read] == [("anna", 10), ("ben", 10)]


def test_a_bids_tree_is_read_as_a_folder_without_what_was_made_of_it(tmp_path: Path) -> None:
    for seed, name in enumerate(("sub-1", "derivatives/clean/sub-1", "sub-2")):
        save(make_raw(seed=seed), tmp_path / name / "eeg" / f"{name[-5:]}_task-mi_eeg.edf")
    (tmp_path / "dataset_description.json").write_text("{}")
    read = eeg_folder(tmp_path, events=EVENTS)
    assert [(trials.subject, len(trials)) for trials in read] == [("sub-1", 10), ("sub-2", 10)]


def test_a_copy_is_read_once_and_noted(tmp_path: Path) -> None:
    """A copy in another session, with another name in its header."""
    file = save(make_raw(), tmp_path / "sub-1" / "ses-1" / "x.edf")
    copy = tmp_path / "sub-1" / "ses-2" / "x.edf"
    copy.parent.mkdir()
    content = file.read_bytes()
    copy.write_bytes(content[:8] + b"somebody else".ljust(80) + content[88:])
    (trials,) = eeg_folder(tmp_path, events=EVENTS)
    assert len(trials) == 10 and trials.recordings == ("sub-1/ses-1/x.edf",)
    assert trials.notes == ("sub-1/ses-2/x.edf: the same samples as sub-1/ses-1/x.edf, left out",)


def test_one_recording_of_two_people_is_refused(tmp_path: Path) -> None:
    for name in ("anna", "ben"):
        save(make_raw(), tmp_path / name / "x.vhdr")
    events = {name: f"Comment/{text}" for name, text in EVENTS.items()}
    with pytest.raises(FedgeoError, match=r"subject ben, ben/x.vhdr: the same samples as anna/x.vhdr of subject anna"):
        eeg_folder(tmp_path, events=events)


def test_one_recording_in_two_formats_is_refused(tmp_path: Path) -> None:
    for name in ("x.edf", "x_raw.fif"):
        save(make_raw(), tmp_path / "anna" / name)
    with pytest.raises(FedgeoError, match=r"anna/x.edf and anna/x_raw.fif are one recording in two formats"):
        eeg_folder(tmp_path, events=EVENTS)
