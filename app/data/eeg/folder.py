"""A folder of EEG recordings: subject and run from the path, events from annotations or labels from a CSV."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path

from ...common.errors import FedgeoError
from .processing import BadChannels, Processing, Reference
from .recording import Recording, read_recording
from .subject_names import EEGMMIDB, name_parts, natural, refuse_ambiguous, select_subjects
from .subjects import trials_of_subjects
from .text_tables import read_table
from .trials import RECORDINGS, Trials

# T1 and T2 mean left and right fist in some runs of EEGMMIDB, both fists and both feet in others.
_EEGMMIDB_FISTS, _EEGMMIDB_FEET = {3, 4, 7, 8, 11, 12}, {5, 6, 9, 10, 13, 14}
# What mne saves beside recordings, and the later parts of a split recording, which are read with the first.
_NOT_A_RECORDING = re.compile(
    r"([-_](epo|eve|ave|cov|fwd|inv|ica|proj|trans|src|sol)|_split-(?!0*1_)\d+.*)\.fif$", re.IGNORECASE
)
_PROCESSED = ("derivatives", "sourcedata", "code")  # folders of BIDS whose recordings are there already
_LATER_PART = re.compile(r"-\d+\.fif$")


def eeg_folder(
    path: str | Path,
    *,
    events: Mapping[str, str | int] | None = None,
    subjects: Sequence[int | str] | None = None,
    runs: Sequence[int] | None = None,
    window: tuple[float, float] = (0.0, 3.0),
    band: tuple[float, float] | None = (8.0, 32.0),
    notch: float | Sequence[float] | None = None,
    resample: float | None = None,
    scale: float | Mapping[str | int, float] = 1.0,
    channels: str | Sequence[str] = "all",
    bad_channels: BadChannels = "refuse",
    reference: Reference = "none",
    rename: Mapping[str, str] | None = None,
    subject_pattern: str | None = None,
    labels_csv: str | Path | None = None,
    windows: tuple[float, float] | None = None,
    cache: str | Path | None = None,
) -> list[Trials]:
    """The trials of all subjects in a folder of EDF, BDF, GDF, FIF, BrainVision or SET recordings.

    events: class name to annotation, in the order of the classes; with ``labels_csv``, class name to label
    (None: the labels themselves, sorted). subjects, runs: which to read (7 matches S007); None reads all.
    window: seconds from the event. band, notch, resample: Hz (see ``Processing``). scale: a factor for
    recordings whose header tells the wrong unit. channels: ``all``, ``common`` or a list. subject_pattern: a
    regular expression for the path below ``path`` whose group ``subject``, or first group, is the subject,
    and group ``run``, if any, the run; without it see ``name_parts``. labels_csv: columns file (its path below
    ``path``, or its name) and label, for recordings that are one class from end to end, cut into ``windows``
    (length, step) in seconds. cache: a folder for the processed trials. Subjects come in natural order (S2
    before S10).

    Raises FedgeoError naming the subject, file and channel of what cannot be used, and what to do.
    """
    root = Path(path).expanduser()
    files = find_files(root)
    labels = None if labels_csv is None else _read_labels(Path(labels_csv).expanduser(), root, files)
    if labels is not None:
        files = [file for file in files if file in labels]
        events = events or {label: label for label in sorted(set(labels.values()))}
        _check_labels(labels, events, root)
        if windows is None:
            raise FedgeoError("data.labels_csv needs data.windows=[length,step] in seconds to cut the recordings by")
    elif windows is not None:
        raise FedgeoError("data.windows is for labelled recordings: give data.labels_csv as well, or set data.window")
    if subject_pattern is None:
        refuse_ambiguous(files, root)
    named = list_recordings(root, files, subject_pattern, labels, rename)
    items = [(item.subject, item) for item, run in named if runs is None or _run_of(run, item) in runs]
    known = [item.subject for item, _ in named]
    chosen = select_subjects(items, known, subjects, where=f"data.path={root}, runs {runs or 'all'}")
    recordings = [item for _, item in chosen]
    if not events:
        present = sorted(set(recordings[0].open().raw.annotations.description))
        raise FedgeoError(
            f"data.events is not set; {recordings[0].name} has annotations {present}: map each class to one"
        )
    _refuse_mixed_meaning(recordings, events, labelled=labels is not None)
    processing = Processing(
        events={str(name): str(text) for name, text in events.items()},
        window=(float(window[0]), float(window[1])),
        windows=None if windows is None else (float(windows[0]), float(windows[1])),
        band=None if band is None else (float(band[0]), float(band[1])),
        notch=notch if notch is None or isinstance(notch, int | float) else tuple(notch),
        resample=resample,
        bad_channels=bad_channels,
        reference=reference,
    )
    folder = None if cache is None else Path(cache).expanduser()
    return trials_of_subjects(recordings, processing, channels=channels, scale=scale, cache=folder)


def list_recordings(
    root: Path,
    files: Sequence[Path],
    pattern: str | None,
    labels: Mapping[Path, str] | None = None,
    rename: Mapping[str, str] | None = None,
) -> list[tuple[Recording, int | None]]:
    """The recordings below ``root`` with their runs, by subject in natural order, each with its label if it has one."""
    found = []
    for file in files:
        subject, run = name_parts(file.relative_to(root), root, pattern)
        name = file.relative_to(root).as_posix()
        label = None if labels is None else labels[file]
        opened = partial(read_recording, file, subject, name, rename)
        found.append((Recording(subject, name, companions(file), opened, label, rename), run))
    return sorted(found, key=lambda item: (natural(item[0].subject), natural(str(item[0].files[0]))))


def companions(file: Path) -> tuple[Path, ...]:
    """All files a recording is read from: BrainVision and SET keep samples and markers beside the header."""
    if file.suffix.lower() not in (".vhdr", ".set"):
        return (file,)
    return (file, *sorted(other for other in file.parent.glob(f"{escape(file.stem)}.*") if other != file))


def find_files(root: Path) -> list[Path]:
    if not root.is_dir():
        raise FedgeoError(f"data.path={root} is not a folder")
    processed = _PROCESSED if (root / "dataset_description.json").is_file() else ()
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        if not set(Path(folder).relative_to(root).parts[:1]) & set(processed)
        for name in names
        if name.lower().endswith(RECORDINGS)
        and not name.startswith(".")
        and not _NOT_A_RECORDING.search(name)
        and not (_LATER_PART.search(name) and _LATER_PART.sub(".fif", name) in names)
    ]
    if not files:
        raise FedgeoError(f"data.path={root} holds no recording ({', '.join(RECORDINGS)})")
    return sorted(files)


def _run_of(run: int | None, item: Recording) -> int:
    if run is None:
        raise FedgeoError(
            f"data.runs is set but {item.files[0].name} tells no run: give data.subject_pattern a group (?P<run>...)"
        )
    return run


def _refuse_mixed_meaning(recordings: Sequence[Recording], events: Mapping[str, str | int], *, labelled: bool) -> None:
    """T1 is left fist in one EEGMMIDB run, both fists in another; read together, one class would be two."""
    matches = [EEGMMIDB.search(item.files[0].name) for item in recordings]
    runs = {int(match["run"]) for match in matches if match}
    fists, feet = sorted(runs & _EEGMMIDB_FISTS), sorted(runs & _EEGMMIDB_FEET)
    if not labelled and fists and feet and {"T1", "T2"} & set(map(str, events.values())):
        raise FedgeoError(
            f"T1 and T2 mean left and right fist in runs {fists} but both fists and both feet in runs {feet}: "
            "set data.runs to one kind, for example [4,8,12], or use data=physionetmi for all four classes"
        )


def _read_labels(table: Path, root: Path, files: Sequence[Path]) -> dict[Path, str]:
    """The label of each recording that the table names."""
    if not table.is_file():
        raise FedgeoError(f"data.labels_csv={table} is not a file")
    columns, rows = read_table(table, ",;\t")
    if not {"file", "label"} <= set(columns):
        raise FedgeoError(f"{table.name} has columns {columns}, expected file and label")
    labels: dict[Path, str] = {}
    for line, row in enumerate(rows, start=2):
        named = [item for item in files if row["file"] in (item.relative_to(root).as_posix(), item.name)]
        if len(named) != 1:
            problem = "is in several folders: write its path" if named else f"is not in data.path={root}"
            raise FedgeoError(f"{table.name}, line {line}: {row['file']!r} {problem}")
        if named[0] in labels:
            raise FedgeoError(f"{table.name}, line {line}: {row['file']!r} has a label already")
        if not row["label"]:
            raise FedgeoError(f"{table.name}, line {line}: {row['file']!r} has no label")
        labels[named[0]] = row["label"]
    if not labels:
        raise FedgeoError(f"{table.name} labels no recording")
    return labels


def _check_labels(labels: Mapping[Path, str], events: Mapping[str, str | int], root: Path) -> None:
    for file, label in labels.items():
        if label not in map(str, events.values()):
            raise FedgeoError(
                f"{file.relative_to(root)} has label {label!r}, which is none of {list(map(str, events.values()))}"
            )
