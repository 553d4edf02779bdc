"""Files as labs have them: what a reader gives up on is said with what to do, older encodings and stim channels are
read."""

from pathlib import Path

import mne
import numpy as np
import pytest
from scipy.io import loadmat, savemat

from app.common.errors import FedgeoError
from app.data.eeg.cutting import class_of
from app.data.eeg.folder import eeg_folder
from app.data.eeg.reader_faults import unreadable
from app.data.eeg.text_tables import read_table
from tests.eeg_files import CHANNELS, EVENTS, ONSETS, make_raw, save

VHDR_EVENTS = {name: f"Comment/{text}" for name, text in EVENTS.items()}


def refused(folder: Path, *parts: str, **settings: object) -> None:
    with pytest.raises(FedgeoError) as caught:
        eeg_folder(folder, **({"events": EVENTS} | settings))  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text and "delete" not in text and "damaged" not in text
    for part in parts:
        assert part in text, text


def test_a_set_of_epochs_says_so(tmp_path: Path) -> None:
    file = save(make_raw(seconds=40.0), tmp_path / "a" / "x.set")
    held = loadmat(file, squeeze_me=True)["EEG"]
    structure = {name: held[name][()] for name in held.dtype.names}
    structure |= {"trials": 10.0, "pnts": 640.0, "data": structure["data"].reshape(4, 10, 640).transpose(0, 2, 1)}
    savemat(file, {"EEG": structure}, appendmat=False)
    refused(tmp_path, "subject a, a/x.set: the file holds epochs", "export continuous data")


def test_a_renamed_brainvision_file_is_named_with_the_line_to_mend(tmp_path: Path) -> None:
    file = save(make_raw(), tmp_path / "a" / "x.vhdr")
    for part in (".eeg", ".vhdr", ".vmrk"):
        file.with_suffix(part).rename(tmp_path / "a" / f"y{part}")
    header = tmp_path / "a" / "y.vhdr"
    line = next(n for n, text in enumerate(header.read_text().splitlines(), start=1) if text.startswith("DataFile"))
    refused(
        tmp_path, f"line {line} of the header points to x.eeg", "write DataFile=y.eeg there, or rename y.eeg to x.eeg"
    )
    header.write_text(header.read_text().replace("=x.", "=y."))
    assert len(eeg_folder(tmp_path, events=VHDR_EVENTS)[0]) == 10


def test_a_missing_brainvision_file_is_named(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "a" / "x.vhdr").with_suffix(".eeg").unlink()
    refused(tmp_path, "points to x.eeg, which is not in its folder: put x.eeg beside it")


@pytest.mark.parametrize("suffix", [".edf", ".bdf"])
def test_annotations_in_latin1_are_read(tmp_path: Path, suffix: str) -> None:
    file = save(make_raw(), tmp_path / "a" / f"x{suffix}")
    (before,) = eeg_folder(tmp_path, events=EVENTS)
    content = file.read_bytes()
    place = content.rindex(b"\x14T1\x14")
    file.write_bytes(content[:place] + b"\x14T\xe4\x14" + content[place + 4 :])
    (after,) = eeg_folder(tmp_path, events=EVENTS)
    assert np.array_equal(after.trials, np.delete(before.trials, 8, axis=0))
    (other,) = eeg_folder(tmp_path, events={"left": "Tä", "right": "T2"})
    assert other.labels.tolist() == [1, 1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'pymatreader.x'"), "pip install pymatreader"),
        (
            RuntimeError("For reading GDF to work, the module eegio is needed, but it could not be imported."),
            "pip install eegio",
        ),
        (PermissionError(13, "Permission denied"), "may not be read by this user"),
        (FileNotFoundError(2, "No such file", "x.fdt"), "x.fdt is not there, which x.set points to"),
        (ValueError("No raw data in x.fif"), "holds epochs, no continuous recording"),
        (KeyError("Block"), "cannot be read to its end (KeyError: 'Block'): copy"),
    ],
)
def test_a_readers_exception_says_what_to_do(error: Exception, message: str) -> None:
    text = str(unreadable(Path("x.set"), "7", "a/x.set", error))
    assert text.startswith("subject 7, a/x.set: ") and message in text and "delete" not in text


def stim(first: int = 0) -> mne.io.RawArray:
    """Events 1 and 2 in turn in a stim channel, with a status bit beside them, and no annotation."""
    raw = make_raw(channels=(*CHANNELS, "STI 014"), labels=(), onsets=())
    raw.set_channel_types({"STI 014": "stim"}, on_unit_change="ignore")
    raw._data[-1] = 0
    for number, onset in enumerate(ONSETS):
        raw._data[-1, onset * 160 : onset * 160 + 20] = 1 + number % 2
    return raw.crop(tmin=first) if first else raw


@pytest.mark.parametrize("first", [0, 5])
def test_events_are_those_of_the_stim_channel_where_there_are_no_annotations(tmp_path: Path, first: int) -> None:
    save(stim(first), tmp_path / "stim" / "x_raw.fif")
    annotated = make_raw(labels=("1", "2") * 5)
    save(annotated.crop(tmin=first) if first else annotated, tmp_path / "text" / "x_raw.fif")
    one, two = eeg_folder(tmp_path, events={"left": 1, "right": 2})
    assert np.array_equal(one.trials, two.trials) and one.labels.tolist() == two.labels.tolist()
    assert one.notes == ("stim/x_raw.fif: no annotations, so the events are those of the stim channel STI 014",)
    assert not two.notes


def test_codes_of_the_stim_channel_are_told_where_none_fits(tmp_path: Path) -> None:
    save(stim(), tmp_path / "a" / "x_raw.fif")
    refused(
        tmp_path, "none of the annotations ['T1', 'T2']", "it has ['1', '2'] (no annotations, so the events are those"
    )


def test_annotations_go_before_the_stim_channel(tmp_path: Path) -> None:
    raw = stim()
    raw.set_annotations(mne.Annotations(ONSETS, [0.0] * 10, ["T2", "T1"] * 5))
    save(raw, tmp_path / "a" / "x_raw.fif")
    (trials,) = eeg_folder(tmp_path, events=EVENTS)
    assert trials.labels.tolist() == [1, 0] * 5 and not trials.notes


def test_an_annotation_is_a_kind_of_its_class() -> None:
    events = ["right", "right/22", "left"]
    told = {
        text: class_of(text, events) for text in ("right", "right/20", "right/22", "right/22/x", "left/1", "righty")
    }
    assert told == {"right": 0, "right/20": 0, "right/22": 1, "right/22/x": 1, "left/1": 2, "righty": None}


TABLES = [
    ("utf-8", ","), ("utf-8-sig", ","), ("latin-1", ","), ("utf-8", ";"), ("latin-1", "\t"), ("utf-16", ";"),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "delimiter"), TABLES)
def test_labels_are_read_in_the_encodings_and_forms_that_there_are(
    tmp_path: Path, encoding: str, delimiter: str
) -> None:
    for seed, name in enumerate(("müde1", "wach1", "müde2", "wach2")):
        save(make_raw(seed=seed, seconds=10.0, labels=(), onsets=()), tmp_path / "anna" / f"{name}_raw.fif")
    rows = [["file", "label"], *([f"{name}_raw.fif", f" {name[:4]}"] for name in ("müde1", "wach1", "müde2", "wach2"))]
    table = tmp_path / "labels.csv"
    table.write_bytes("\r\n".join(delimiter.join(row) for row in rows).encode(encoding))
    (trials,) = eeg_folder(tmp_path, labels_csv=table, windows=(2.0, 2.0))
    assert trials.classes == ("müde", "wach") and trials.labels.tolist() == [0] * 10 + [1] * 10


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_bytes(b"PK\x03\x04\x00\x00")
    with pytest.raises(FedgeoError, match=f"{table}: not a text table"):
        read_table(table, ",;\t")
