"""MOABB's sets: PhysionetMI from real recordings, Weibo2014 from a file of its form, and what is missing."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from app.common.errors import FedgeoError
from app.data.eeg.folder import eeg_folder
from app.data.eeg.moabb_sets import (
    PHYSIONETMI_CLASSES,
    PHYSIONETMI_EXCLUDED,
    WEIBO2014_CLASSES,
    eeg_moabb,
    physionetmi,
    weibo2014,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def physionet(test_data: Path, tmp_path: Path) -> Path:
    """A folder that may be written, with links to the recordings of the subjects that have all imagery
    runs."""
    below = Path("MNE-eegbci-data", "files", "eegmmidb", "1.0.0")
    for subject in ("S001", "S004", "S015", "S042"):
        (tmp_path / below / subject).mkdir(parents=True)
        for file in sorted((test_data / "eeg" / below / subject).glob("*.edf")):
            (tmp_path / below / subject / file.name).symlink_to(file.resolve())
    return tmp_path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_physionetmi_has_the_form_of_the_paper(physionet: Path, offline: None) -> None:
    before = dict(os.environ)
    subjects = physionetmi(subjects=[1, 4, 15, 42], path=physionet)
    assert dict(os.environ) == before
    assert [subject.subject for subject in subjects] == ["1", "4", "15", "42"]
    for subject in subjects:
        assert subject.trials.shape[1:] == (64, 481) and subject.rate == 160.0
        assert subject.classes == PHYSIONETMI_CLASSES == ("left_hand", "right_hand", "hands", "feet")
        assert 85 <= len(subject) <= 92 and np.bincount(subject.labels).min() >= 20
        assert len(subject.recordings) == 6 and subject.notes == ()
        assert 1 < np.median(subject.trials.std(axis=(0, 2))) < 100


def test_trials_equal_those_of_moabbs_own_paradigm(
    physionet: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An independent path: MOABB's filters and epochs, in microvolts, for the same four events."""
    from moabb.datasets import PhysionetMI
    from moabb.paradigms import MotorImagery

    for name in ("MNE_DATA", "MNE_DATASETS_EEGBCI_PATH"):
        monkeypatch.setenv(name, str(physionet))
    monkeypatch.setenv("MOABB_DOWNLOAD_PROVIDER", "upstream")
    paradigm = MotorImagery(events=list(PHYSIONETMI_CLASSES), n_classes=4, fmin=8, fmax=32, tmin=0, tmax=3)
    epochs, labels, _ = paradigm.get_data(PhysionetMI(), subjects=[4], return_epochs=True)
    (ours,) = physionetmi(subjects=[4])
    theirs = epochs.get_data(picks=list(ours.channels), units="uV")
    assert theirs.shape == ours.trials.shape
    assert np.allclose(ours.trials, theirs, rtol=1e-5, atol=1e-4)
    assert [ours.classes[label] for label in ours.labels] == list(labels)


def test_the_same_recordings_read_as_a_folder_are_the_same_trials(physionet: Path, offline: None) -> None:
    """Left and right hand need the three runs that hold them, and no others."""
    (named,) = eeg_moabb("physionetmi", events=("left_hand", "right_hand"), subjects=[42], path=physionet)
    events = {"left_hand": "T1", "right_hand": "T2"}
    (plain,) = eeg_folder(physionet, events=events, subjects=[42], runs=[4, 8, 12])
    assert named.channels == plain.channels and named.classes == plain.classes
    assert np.array_equal(named.labels, plain.labels) and np.array_equal(named.run, plain.run)
    assert np.allclose(named.trials, plain.trials, atol=1e-3)


def test_a_moabb_subject_is_cached_by_the_content_of_its_files(physionet: Path, offline: None, tmp_path: Path) -> None:
    events = ("hands", "feet")
    cache = tmp_path / "cache"
    (first,) = eeg_moabb("PhysionetMI", events=events, subjects=[1], path=physionet, cache=cache)
    (again,) = eeg_moabb("PhysionetMI", events=events, subjects=[1], path=physionet, cache=cache)
    assert isinstance(again.trials, np.memmap) and np.array_equal(first.trials, again.trials)
    assert len(list(cache.iterdir())) == 1
    shorter = eeg_moabb("PhysionetMI", events=events, interval=(0.5, 2.5), subjects=[1], path=physionet, cache=cache)
    assert shorter[0].trials.shape[2] == 321
    assert np.allclose(shorter[0].trials, first.trials[:, :, 80:401], atol=1e-4)
    assert len(list(cache.iterdir())) == 2


def test_weibo2014_has_the_form_of_the_paper(tmp_path: Path, offline: None) -> None:
    """A file of the set's own form: 64 channels at 200 Hz, 8 s a trial, two of them neither EEG nor EOG."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(1, 8), 2)
    data = 20 * rng.standard_normal((64, 1600, 14))
    (tmp_path / "MNE-weibo-2014").mkdir()
    savemat(tmp_path / "MNE-weibo-2014" / "subject_1.mat", {"data": data, "label": labels})
    (subject,) = weibo2014(subjects=[1], path=tmp_path, cache=tmp_path / "cache")
    assert subject.trials.shape == (14, 60, 801) and subject.rate == 200.0
    assert subject.classes == WEIBO2014_CLASSES and len(WEIBO2014_CLASSES) == 7
    assert not {"CB1", "CB2", "VEO", "HEO"} & set(subject.channels)
    names = [
        "left_hand",
        "right_hand",
        "hands",
        "feet",
        "left_hand_right_foot",
        "right_hand_left_foot",
        "rest",
    ]
    assert [subject.classes[label] for label in subject.labels] == [names[code - 1] for code in labels]


def test_the_three_subjects_are_excluded_by_name(physionet: Path, offline: None) -> None:
    assert PHYSIONETMI_EXCLUDED == (88, 92, 100)
    (left,) = physionetmi(subjects=[1, 88, 92, 100], path=physionet)
    assert left.subject == "1"


def test_missing_data_says_where_what_and_how(physionet: Path, offline: None) -> None:
    with pytest.raises(FedgeoError) as caught:
        physionetmi(subjects=[2], path=physionet)
    text = str(caught.value)
    for part in ("PhysionetMI: subject 2", str(physionet), "MNE_DATA", "about 1.7 GB", "download()"):
        assert part in text
    assert "\n" not in text
    with pytest.raises(FedgeoError, match="Weibo2014: subject 1 is not complete.*about 2 GB"):
        weibo2014(subjects=[1], path=physionet)


def test_a_truncated_recording_is_named_with_what_to_do(physionet: Path, offline: None) -> None:
    (file,) = physionet.rglob("S004R08.edf")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(FedgeoError, match=f"subject 4, S004R08.edf: .*cut short.*copy {file} again"):
        physionetmi(subjects=[4], path=physionet)


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, offline: None) -> None:
    (tmp_path / "MNE-weibo-2014").mkdir()
    file = tmp_path / "MNE-weibo-2014" / "subject_1.mat"
    file.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + bytes(40))
    with pytest.raises(FedgeoError, match=f"subject 1 of Weibo2014.*{file}"):
        weibo2014(subjects=[1], path=tmp_path)


@pytest.mark.parametrize(
    ("name", "events", "message"),
    [
        ("PhysionetMI", ("left_hand", "tongue"), "PhysionetMI needs data.events, two or more of"),
        ("PhysionetMI", ("left_hand",), "PhysionetMI needs data.events, two or more of"),
        ("Physionet", ("left_hand", "feet"), "MOABB has no data set 'Physionet'; it has PhysionetMI"),
        ("BI2012", ("Target", "NonTarget"), "BI2012 is a p300 set, not motor imagery"),
    ],
)
def test_an_unknown_set_or_event_is_refused(name: str, events: tuple[str, ...], message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        eeg_moabb(name, events=events)
