"""Recordings to trials, subject by subject: agreement, copies, bad channels of all, units, the cache."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError
from .copies import without_copies
from .cutting import Cut, bad_channels, cut
from .processing import Processing
from .recording import Recording, agree_channels, agree_rates, read_header
from .subject_names import is_subject
from .trial_cache import cached, file_hash, remembered_json
from .trials import Trials, check_agreement


def trials_of_subjects(
    recordings: Sequence[Recording],
    processing: Processing,
    *,
    channels: str | Sequence[str] = "all",
    scale: float | Mapping[str | int, float] = 1.0,
    cache: Path | None = None,
) -> list[Trials]:
    """Process recordings subject by subject, in the order of their first recordings.

    channels: ``all``, ``common`` or a list (see ``agree_channels``). scale: a factor for recordings whose header tells
    the wrong unit, of all subjects or of those named. cache: a folder; what it holds is read back as memory maps.
    Raises FedgeoError for recordings that do not fit together or cannot be used.
    """
    recordings, notes = without_copies(recordings)
    headers = [read_header(recording) for recording in recordings]
    agreed = agree_channels(recordings, headers, channels)
    agree_rates(recordings, headers, processing.resample)
    by_subject: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_subject.setdefault(recording.subject, []).append(recording)
    by_name = {name: scaled(processing, name, scale) for name in by_subject}
    if processing.bad_channels == "drop":
        agreed = _without_bad(recordings, agreed, by_name, notes, cache)
    subjects = [_subject(own, by_name[name], agreed, cache) for name, own in by_subject.items()]
    subjects = [replace(item, notes=(*notes.get(item.subject, ()), *item.notes)) for item in subjects]
    check_agreement(subjects)
    return subjects


def scaled(processing: Processing, subject: str, scale: float | Mapping[str | int, float]) -> Processing:
    """The processing of one subject's recordings, with its factor of ``scale``."""
    if isinstance(scale, int | float):
        return replace(processing, microvolts=processing.microvolts * scale)
    factors = [factor for name, factor in scale.items() if is_subject(name, subject)]
    if len(factors) > 1:
        raise FedgeoError(f"data.scale gives subject {subject} {len(factors)} factors: {dict(scale)}")
    return replace(processing, microvolts=processing.microvolts * factors[0]) if factors else processing


def _without_bad(
    recordings: Sequence[Recording],
    channels: tuple[str, ...],
    processing: Mapping[str, Processing],
    notes: dict[str, list[str]],
    cache: Path | None,
) -> tuple[str, ...]:
    """The channels that no recording has bad. What is left out is added to ``notes``, by subject."""
    dropped: set[str] = set()
    for recording in recordings:
        for name, why in _bad_channels(recording, channels, processing[recording.subject], cache).items():
            dropped.add(name)
            told = f"{recording.name}: channel {name} {why}: left out of all recordings"
            notes.setdefault(recording.subject, []).append(told)
    if len(dropped) == len(channels):
        raise FedgeoError("data.bad_channels=drop leaves no channel: every one of them is bad in some recording")
    return tuple(name for name in channels if name not in dropped)


def _bad_channels(
    recording: Recording, channels: tuple[str, ...], processing: Processing, cache: Path | None
) -> dict[str, str]:
    """The recording's bad channels, and why: of files and settings that were judged before, from the cache."""
    if cache is None:
        return bad_channels(recording, channels, processing)
    settings = _content([recording], channels) | processing.settings()
    return remembered_json(cache / "bad_channels", settings, lambda: bad_channels(recording, channels, processing))


def _content(recordings: Sequence[Recording], channels: tuple[str, ...]) -> dict:
    """What is read, for the key of a cache."""
    files = [[item.name, item.label, *map(file_hash, item.files)] for item in recordings]
    renamed = [dict(item.rename) for item in recordings if item.rename]
    return {"files": files, "channels": channels} | ({"rename": renamed} if renamed else {})


def _subject(
    recordings: Sequence[Recording], processing: Processing, channels: tuple[str, ...], cache: Path | None
) -> Trials:
    if cache is None:
        return cut_subject(recordings, processing, channels)
    settings = _content(recordings, channels) | processing.settings()
    return cached(cache, recordings[0].subject, settings, lambda: cut_subject(recordings, processing, channels))


def cut_subject(recordings: Sequence[Recording], processing: Processing, channels: tuple[str, ...]) -> Trials:
    """One subject's trials of ``channels``, which each of the recordings must have."""
    cuts = [_cut(recording, channels, processing) for recording in recordings]
    labels = np.concatenate([one.labels for one in cuts])
    classes = tuple(processing.events)
    notes = _gather([(recording.name, one.notes) for recording, one in zip(recordings, cuts, strict=True)])
    held = ", ".join(sorted(frozenset().union(*(one.annotations for one in cuts)))) or "none"
    notes += [
        f"no trial of class {name} ({text}); its annotations: {held}"
        for index, (name, text) in enumerate(processing.events.items())
        if index not in labels
    ]
    return Trials(
        subject=recordings[0].subject,
        trials=np.concatenate([one.trials for one in cuts]),
        labels=labels,
        run=np.repeat(np.arange(len(cuts)), [len(one.labels) for one in cuts]),
        recordings=tuple(recording.name for recording in recordings),
        channels=channels,
        rate=cuts[0].rate,
        classes=classes,
        average_reference=any(one.average_reference for one in cuts),
        windowed=recordings[0].label is not None,
        notes=tuple(notes),
    )


def _cut(recording: Recording, channels: tuple[str, ...], processing: Processing) -> Cut:
    """One recording's trials; whatever a library trips over is said of the recording."""
    try:
        return cut(recording, channels, processing)
    except FedgeoError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise recording.fault(f"cannot be processed ({type(error).__name__}: {detail})") from error


def _gather(by_recording: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Notes with the recordings they are about; one that all recordings share comes once."""
    shared = [note for note in by_recording[0][1] if all(note in notes for _, notes in by_recording)]
    if len(by_recording) == 1:
        shared = []
    rest = [f"{name}: {note}" for name, notes in by_recording for note in notes if note not in shared]
    return [f"all recordings: {note}" for note in shared] + rest
