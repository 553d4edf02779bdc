"""A folder of EEG recordings: subject and run from the path, events from annotations or labels from a CSV."""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path

from ...common.errors import FedgeoError
from .processing import Processing, trials_of_subjects
from .recording import Recording, read_recording
from .trials import RECORDINGS, Trials

# PhysioNet's EEG Motor Movement/Imagery: S007R04.edf is run 4 of subject 7. T1 and T2 mean left and right
# fist in some of its runs, both fists and both feet in others.
_EEGMMIDB = re.compile(r"(?P<subject>S\d{3})R(?P<run>\d{2})\.edf$", re.IGNORECASE)
_EEGMMIDB_FISTS, _EEGMMIDB_FEET = {3, 4, 7, 8, 11, 12}, {5, 6, 9, 10, 13, 14}
_RUN = re.compile(r"run[-_ ]?(?P<run>\d+)", re.IGNORECASE)
# What mne saves beside recordings, and the later parts of a split recording, which are read with the first.
_NOT_A_RECORDING = re.compile(
    r"([-_](epo|eve|ave|cov|fwd|inv|ica|proj|trans|src|sol)|_split-(?!0*1_)\d+.*)\.fif$", re.IGNORECASE
)
_LATER_PART = re.compile(r"-\d+\.fif$")


def eeg_folder(
    path: str | Path,
    *,
    events: Mapping[str, str] | None = None,
    subjects: Sequence[int | str] | None = None,
    runs: Sequence[int] | None = None,
    window: tuple[float, float] = (0.0, 3.0),
    band: tuple[float, float] | None = (8.0, 32.0),
    notch: float | Sequence[float] | None = None,
    resample: float | None = None,
    scale: float = 1.0,
    channels: str | Sequence[str] = "all",
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
    and group ``run``, if any, the run; without it S007R04.edf speaks for itself and otherwise the parent
    folder is the subject. labels_csv: columns file (its path below ``path``, or its name) and label, for
    recordings that are one class from end to end, cut into ``windows`` (length, step) in seconds. cache: a
    folder for the processed trials. Subjects come in natural order (S2 before S10).

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
    named = [(name_parts(file.relative_to(root), root, subject_pattern), file) for file in files]
    items = [(subject, run, file) for (subject, run), file in named if runs is None or _run_of(run, file) in runs]
    known = [subject for (subject, _), _ in named]
    chosen = select_subjects(items, known, subjects, where=f"data.path={root}, runs {runs or 'all'}")
    recordings = [
        Recording(
            subject,
            str(file.relative_to(root)),
            companions(file),
            partial(read_recording, file, subject, str(file.relative_to(root))),
            None if labels is None else labels[file],
        )
        for subject, _, file in sorted(chosen, key=lambda item: (natural(item[0]), natural(str(item[2]))))
    ]
    if not events:
        present = sorted(set(recordings[0].open().raw.annotations.description))
        raise FedgeoError(
            f"data.events is not set; {recordings[0].name} has annotations {present}: map each class to one"
        )
    _refuse_mixed_meaning(chosen, events, labelled=labels is not None)
    processing = Processing(
        events={str(name): str(text) for name, text in events.items()},
        window=(float(window[0]), float(window[1])),
        windows=None if windows is None else (float(windows[0]), float(windows[1])),
        band=None if band is None else (float(band[0]), float(band[1])),
        notch=notch if notch is None or isinstance(notch, int | float) else tuple(notch),
        resample=resample,
        microvolts=1e6 * scale,
    )
    folder = None if cache is None else Path(cache).expanduser()
    return trials_of_subjects(recordings, processing, channels=channels, cache=folder)


def select_subjects(
    items: Sequence[tuple], known: Sequence[str], wanted: Sequence[int | str] | None, *, where: str
) -> list[tuple]:
    """Those items (subject first) whose subject is wanted; None wants all.

    A name matches itself, 7 and "7" match the last number in S007. Raises FedgeoError for a wanted subject
    that is unknown, matches several, or has no item.
    """
    if wanted is None and items:
        return list(items)
    names = sorted(set(known), key=natural)
    chosen = set()
    for subject in wanted or names:
        matches = [name for name in names if _matches(subject, name)]
        if len(matches) != 1:
            problem = f"could be any of {matches}" if matches else f"is not among {', '.join(names) or 'none'}"
            raise FedgeoError(f"{where}: subject {subject} {problem}")
        if matches[0] not in {item[0] for item in items}:
            raise FedgeoError(f"{where}: subject {matches[0]} has no such recording")
        chosen.add(matches[0])
    return [item for item in items if item[0] in chosen]


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sorting key by which S2 comes before S10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]


def companions(file: Path) -> tuple[Path, ...]:
    """All files a recording is read from: BrainVision and SET keep samples and markers beside the header."""
    if file.suffix.lower() not in (".vhdr", ".set"):
        return (file,)
    return (file, *sorted(other for other in file.parent.glob(f"{escape(file.stem)}.*") if other != file))


def find_files(root: Path) -> list[Path]:
    if not root.is_dir():
        raise FedgeoError(f"data.path={root} is not a folder")
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if name.lower().endswith(RECORDINGS)
        and not name.startswith(".")
        and not _NOT_A_RECORDING.search(name)
        and not (_LATER_PART.search(name) and _LATER_PART.sub(".fif", name) in names)
    ]
    if not files:
        raise FedgeoError(f"data.path={root} holds no recording ({', '.join(RECORDINGS)})")
    return sorted(files)


def name_parts(relative: Path, root: Path, pattern: str | None) -> tuple[str, int | None]:
    """Subject and run of a file, from its path below the data folder."""
    text = relative.as_posix()
    if pattern is not None:
        match = re.search(pattern, text)
        groups = match.groupdict() if match else {}
        subject = groups.get("subject") or (match.group(1) if match and match.groups() else None)
        if not subject:
            raise FedgeoError(f"data.subject_pattern={pattern!r} finds no subject in {text}: it needs a group for it")
        return subject, int(groups["run"]) if groups.get("run") else None
    physionet = _EEGMMIDB.search(relative.name)
    if physionet:
        return physionet["subject"].upper(), int(physionet["run"])
    run = _RUN.search(relative.name)
    return (relative.parent.name or root.resolve().name), int(run["run"]) if run else None


def _run_of(run: int | None, file: Path) -> int:
    if run is None:
        raise FedgeoError(
            f"data.runs is set but {file.name} tells no run: give data.subject_pattern a group (?P<run>...)"
        )
    return run


def _matches(wanted: int | str, name: str) -> bool:
    if str(wanted).casefold() == name.casefold():
        return True
    numbers = re.findall(r"\d+", name)
    return str(wanted).isdigit() and bool(numbers) and int(numbers[-1]) == int(wanted)


def _refuse_mixed_meaning(
    chosen: Sequence[tuple[str, int | None, Path]], events: Mapping[str, str], *, labelled: bool
) -> None:
    """T1 is left fist in one EEGMMIDB run, both fists in another; read together, one class would be two."""
    runs = {run for _, run, file in chosen if run is not None and _EEGMMIDB.search(file.name)}
    fists, feet = sorted(runs & _EEGMMIDB_FISTS), sorted(runs & _EEGMMIDB_FEET)
    if not labelled and fists and feet and {"T1", "T2"} & set(events.values()):
        raise FedgeoError(
            f"T1 and T2 mean left and right fist in runs {fists} but both fists and both feet in runs {feet}: "
            "set data.runs to one kind, for example [4,8,12], or use data=physionetmi for all four classes"
        )


def _read_labels(table: Path, root: Path, files: Sequence[Path]) -> dict[Path, str]:
    """The label of each recording that the table names."""
    if not table.is_file():
        raise FedgeoError(f"data.labels_csv={table} is not a file")
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if not {"file", "label"} <= set(reader.fieldnames or ()):
            raise FedgeoError(f"{table.name} has columns {reader.fieldnames}, expected file and label")
        rows = list(reader)
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


def _check_labels(labels: Mapping[Path, str], events: Mapping[str, str], root: Path) -> None:
    for file, label in labels.items():
        if label not in events.values():
            raise FedgeoError(f"{file.relative_to(root)} has label {label!r}, which is none of {list(events.values())}")
