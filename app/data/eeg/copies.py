"""One recording that is there twice: read once, or refused, so that nobody is tested on what was trained on."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...common.errors import FedgeoError
from .recording import Recording
from .trial_cache import file_hash

_WHO_AND_WHEN = 256  # bytes that EDF, BDF and GDF begin with: a copy may say another name or date


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], dict[str, list[str]]]:
    """The recordings but for those whose samples another one before them holds, and what to note, by subject.

    Raises FedgeoError where the two are of different subjects or labels, and where two files of one folder differ in
    their format alone.
    """
    _refuse_two_formats(recordings)
    by_size: dict[int, list[Recording]] = defaultdict(list)
    for recording in recordings:
        by_size[_samples(recording).stat().st_size].append(recording)
    first: dict[str, Recording] = {}
    dropped: set[str] = set()
    notes: dict[str, list[str]] = defaultdict(list)
    for recording in (item for alike in by_size.values() if len(alike) > 1 for item in alike):
        file = _samples(recording)
        skipped = _WHO_AND_WHEN if file.suffix.lower() in (".edf", ".bdf", ".gdf") else 0
        other = first.setdefault(file_hash(file, skipped), recording)
        if other is recording:
            continue
        if (other.subject, other.label) != (recording.subject, recording.label):
            raise recording.fault(
                f"the same samples as {other.name} of subject {other.subject}"
                f"{'' if other.label == recording.label else f', labelled {other.label}'}: "
                "leave one of them out, or set data.subject_pattern"
            )
        dropped.add(recording.name)
        notes[recording.subject].append(f"{recording.name}: the same samples as {other.name}, left out")
    return [item for item in recordings if item.name not in dropped], dict(notes)


def _samples(recording: Recording) -> Path:
    """The file that holds the samples: the largest."""
    return max(recording.files, key=lambda file: file.stat().st_size)


def _refuse_two_formats(recordings: Iterable[Recording]) -> None:
    seen: dict[Path, Recording] = {}
    for recording in recordings:
        file = recording.files[0]
        stem = file.with_name(re.sub(r"[-_](raw|eeg)$", "", file.stem, flags=re.IGNORECASE))
        other = seen.setdefault(stem, recording)
        if other is not recording and other.files[0].suffix.lower() != file.suffix.lower():
            raise FedgeoError(
                f"subject {recording.subject}: {other.name} and {recording.name} are one recording in two formats by "
                "their names: keep one of them in the folder"
            )
