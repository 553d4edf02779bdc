"""Whose a recording is, from its path: two people must stay two, and one person one, or the folder is refused."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...common.errors import FedgeoError

# PhysioNet's EEG Motor Movement/Imagery: S007R04.edf is run 4 of subject 7.
EEGMMIDB = re.compile(r"(?P<subject>S\d{3})R(?P<run>\d{2})\.edf$", re.IGNORECASE)
_RUN = re.compile(r"run[-_ ]?(?P<run>\d+)", re.IGNORECASE)
_BIDS = re.compile(r"(?:^|[/_])(sub-[A-Za-z0-9]+)")
_PERSON = re.compile(
    r"(s|p|vp|vpn|sub|subj|subject|pat|patient|participant|proband|person|pilot)[-_ ]?\d+[a-z]?", re.IGNORECASE
)
# What a folder, or part of a file's name, may be called that tells when or how, and not whom, was recorded.
_OCCASIONS = (
    "ses|session|sitting|run|block|day|week|month|visit|date|rec|recording|record|trial|part|task|timepoint|take|try|"
    "attempt|pre|post|baseline|followup|before|after|first|second|third|fourth|last|morning|noon|afternoon|evening|night|"
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
)
_KINDS = (
    "eeg|ieeg|meg|beh|anat|func|raw|rawdata|sourcedata|derivatives|preprocessed|processed|clean|cleaned|filtered|data|"
    "file|edf|bdf|gdf|fif|set|bv|vhdr|brainvision|eeglab|export|split"
)
_CONDITIONS = (
    "rest|resting|left|right|hand|foot|feet|tongue|eye|open|closed|eo|ec|mi|motor|imagery|imagination|movement|"
    "execution|training|train|test|calibration|feedback|online|offline|evaluation|relax|idle|active|passive|stim|sham"
)
_WORD = re.compile(rf"({_OCCASIONS}|{_KINDS}|{_CONDITIONS})s?")
_OCCASION_FOLDER = re.compile(
    rf"({_OCCASIONS})s?([-_ ]?\d+\w?|[-_ ]\w+)?|({_KINDS})s?[-_ ]?\d*|\d{{4}}[-_.]?\d{{2}}[-_.]?\d{{2}}([-_ T]\d+)*",
    re.IGNORECASE,
)
# Folders that hold several people, and are nobody's.
_GROUP = re.compile(
    r"(patient|control|healthy|case|group|cohort|site|cent(er|re)|lab|hospital|clinic|subject|participant|people|person|"
    r"proband|volunteer|study|experiment|exp|dataset|men|women|male|female|adult|child|children|young|old|elderly)s?"
    r"[-_ ]?\w?\d*",
    re.IGNORECASE,
)
_HOW_MANY = 3  # names that are told of many


def name_parts(relative: Path, root: Path, pattern: str | None) -> tuple[str, int | None]:
    """Subject and run of a file, from its path below the data folder.

    In this order: ``pattern``; S007R04.edf; a BIDS label (sub-07) anywhere in the path or the file's name; the nearest
    folder upwards that is not a session's, run's or modality's, but rather one that is named like a person (S07).
    """
    text = relative.as_posix()
    if pattern is not None:
        return _by_pattern(text, pattern)
    physionet = EEGMMIDB.search(relative.name)
    if physionet:
        return physionet["subject"].upper(), int(physionet["run"])
    run = _RUN.search(relative.name) or _RUN.search(relative.parent.as_posix())
    number = int(run["run"]) if run else None
    if labels := sorted(set(_BIDS.findall(text))):
        if len(labels) > 1:
            raise _ambiguous(f"{text} names {' and '.join(labels)}")
        return labels[0], number
    return _folder(relative, root).name, number


def refuse_ambiguous(files: Sequence[Path], root: Path) -> None:
    """Refuse a folder from whose paths it cannot be told which recordings are of one person.

    files: all recordings below ``root``. Raises FedgeoError naming what is ambiguous, and data.subject_pattern.
    """
    homes: dict[Path, list[Path]] = {}
    for file in files:
        relative = file.relative_to(root)
        if not EEGMMIDB.search(relative.name):
            homes.setdefault(_home(relative, root), []).append(relative)
    by_name: dict[str, set[str]] = {}
    for home in homes:
        above = home.relative_to(root.resolve()).parts if home.is_relative_to(root.resolve()) else ()
        place = "/".join(part for part in above if part == home.name or not _occasion(part))
        by_name.setdefault(home.name, set()).add(place)
    for name, places in by_name.items():
        if len(places) > 1:
            raise _ambiguous(f"{_few(places)} would be one subject, {name}")
    _refuse_shared_parents(homes, root.resolve())
    for home, own in homes.items():
        people = {person for file in own for person in _people(file.stem)}
        if len(people) > 1 and not _person(home.name):
            raise _ambiguous(f"the names of the recordings of {home.name} tell {_few(people)}")
        names = {_whom(file.stem): file.as_posix() for file in sorted(own)}
        if home == root.resolve() and len(names) > 1:  # no folder speaks for them
            raise _ambiguous(f"the recordings {_few(names.values())} lie in one folder")


def _refuse_shared_parents(homes: Iterable[Path], root: Path) -> None:
    """anna/montag and anna/dienstag are one person's sessions, clinic/anna and clinic/bert two people.

    Where neither the folders nor the one above them are named so that it can be told, they are refused.
    """
    beside: dict[Path, list[Path]] = {}
    for home in homes:
        if home != root and home.parent != root and home.is_relative_to(root) and not _person(home.name):
            beside.setdefault(home.parent, []).append(home)
    for parent, folders in beside.items():
        if len(folders) > 1 and not (_occasion(parent.name) or _GROUP.fullmatch(parent.name)):
            told = _few(folder.relative_to(root).as_posix() for folder in folders)
            raise _ambiguous(f"the folders {told} may be one person's occasions or two people")


def _by_pattern(text: str, pattern: str) -> tuple[str, int | None]:
    match = re.search(pattern, text)
    groups = match.groupdict() if match else {}
    subject = groups.get("subject") or (match.group(1) if match and match.groups() else None)
    if not subject:
        raise FedgeoError(f"data.subject_pattern={pattern!r} finds no subject in {text}: it needs a group for it")
    return subject, int(groups["run"]) if groups.get("run") else None


def _home(relative: Path, root: Path) -> Path:
    """The folder that stands for the subject; for a BIDS label in a file's name alone, one that there would be."""
    labels = _BIDS.findall(relative.as_posix())
    if not labels:
        return _folder(relative, root)
    parts = relative.parent.parts
    above = parts[: parts.index(labels[0])] if labels[0] in parts else parts
    return root.resolve().joinpath(*above, labels[0])


def _folder(relative: Path, root: Path) -> Path:
    """The folder below ``root`` whose name is the subject's; ``root``, or a person's above it, where none can be."""
    whole = root.resolve()
    below = [whole.joinpath(*relative.parts[:depth]) for depth in range(len(relative.parts) - 1, 0, -1)]
    people = [folder for folder in below if _person(folder.name)]
    if len(people) > 1:
        raise _ambiguous(f"{relative.as_posix()} lies in the folders {' and '.join(f.name for f in people[::-1])}")
    above = [folder for folder in whole.parents if _person(folder.name)] if _occasion(whole.name) else []
    return [*people, *(folder for folder in below if not _occasion(folder.name)), *above, whole][0]


def _person(name: str) -> bool:
    return _PERSON.fullmatch(name) is not None or re.fullmatch("sub-[A-Za-z0-9]+", name) is not None


def _occasion(name: str) -> bool:
    return _OCCASION_FOLDER.fullmatch(name) is not None


def _people(stem: str) -> list[str]:
    """Parts of a file's name that are named like a person: p7 and p11 of p7_block1 and p11_block1."""
    parts = re.split(r"[-_ .]+", re.sub(r"(?<=[a-zA-Z])[-_ ](?=\d)", "", stem))
    return [part.casefold() for part in parts if _PERSON.fullmatch(part)]


def _whom(stem: str) -> tuple[str, ...]:
    """What is left of a file's name without the words, and their numbers, that tell when or how it was recorded."""
    left: list[str] = []
    known = False
    for word in re.findall(r"[^\W\d_]+|\d+", stem.casefold()):
        known = known if word.isdigit() else _WORD.fullmatch(word) is not None
        left += [] if known else [word.lstrip("0")]
    return tuple(left)


def _few(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:_HOW_MANY]) + (f" and {len(every) - _HOW_MANY} more" if len(every) > _HOW_MANY else "")


def _ambiguous(what: str) -> FedgeoError:
    return FedgeoError(
        f"{what}: which recordings are one person's? Set data.subject_pattern to a regular expression for the path "
        "with a group for the subject, such as '(?P<subject>[^/_]+)_', or give each person a folder"
    )


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
        matches = [name for name in names if is_subject(subject, name)]
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


def is_subject(wanted: int | str, name: str) -> bool:
    """Whether a name or number means a subject: S007 itself, or 7 its last number."""
    if str(wanted).casefold() == name.casefold():
        return True
    numbers = re.findall(r"\d+", name)
    return str(wanted).isdigit() and bool(numbers) and int(numbers[-1]) == int(wanted)
