"""EDF+D and BDF+D: recordings with gaps, whose annotations carry the time of the clock, not places among the samples.

mne reads the samples side by side and leaves the annotations at clock times, so that all after a gap are wrong. Here
each record's own start is read from its first annotation (TAL), and the annotations are mapped.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import mne
import numpy as np

from ...common.errors import FedgeoError

_SAMPLE_BYTES = {".edf": 2, ".bdf": 3}
_ONSET = re.compile(rb"[+-]\d+(\.\d*)?")


@dataclass(frozen=True)
class Stretch:
    """Records without a gap between them, in seconds: from ``clock`` by the clock, from ``place`` among the samples."""

    clock: float
    place: float
    length: float

    @property
    def end(self) -> float:
        return self.clock + self.length


@dataclass(frozen=True)
class Discontinuous:
    """A recording with gaps. annotations: onset by the clock, duration (seconds) and text."""

    stretches: tuple[Stretch, ...]
    annotations: tuple[tuple[float, float, str], ...]


def discontinuous(path: Path, rate: float) -> Discontinuous | None:
    """The stretches and annotations of an EDF+D or BDF+D file; None where the file is another or has no gap.

    rate: Hz, by which a gap of less than half a sample is none. Raises FedgeoError where a record does not say when
    it begins, or begins before the one ahead of it has ended.
    """
    size = _SAMPLE_BYTES.get(path.suffix.lower())
    if size is None:
        return None
    with path.open("rb") as file:
        head = file.read(256)
        if head[192:197] not in (b"EDF+D", b"BDF+D"):
            return None
        signals = int(head[252:256])
        labels = file.read(256 * signals)
    texts = [labels[16 * index :][:16].strip() for index in range(signals)]
    counts = [int(labels[216 * signals + 8 * index :][:8]) for index in range(signals)]
    ends = size * np.cumsum(counts)
    parts = [
        (int(end) - size * count, int(end))
        for text, count, end in zip(texts, counts, ends, strict=True)
        if text in (b"EDF Annotations", b"BDF Annotations")
    ]
    start, seconds, record = int(head[184:192]), float(head[244:252]), int(ends[-1])
    records = (path.stat().st_size - start) // record
    if not parts or seconds <= 0 or records < 1:
        return None
    rows = np.memmap(path, np.uint8, "r", offset=start, shape=(records, record))
    onsets: list[float] = []
    annotations: list[tuple[float, float, str]] = []
    for number, row in enumerate(rows):
        lists = [row[first:last].tobytes().split(b"\x00") for first, last in parts]
        onsets.append(_onset(lists[0][0], path, number))
        annotations += [found for tals in lists for tal in tals for found in _annotations(tal)]
    zero = onsets[0]
    stretches = _stretches([onset - zero for onset in onsets], seconds, 0.5 / rate, path)
    if len(stretches) == 1:
        return None
    moved = sorted((onset - zero, duration, text) for onset, duration, text in annotations)
    return Discontinuous(stretches, tuple(moved))


def mapped(found: Discontinuous) -> tuple[mne.Annotations, list[str]]:
    """The annotations at their places among the samples, and the texts of those lost.

    Each gap becomes an ``EDGE boundary``. An annotation that begins in a gap is lost, but a ``BAD`` stretch counts
    wherever there are samples.
    """
    placed: list[tuple[float, float, str]] = []
    lost = []
    for onset, duration, text in found.annotations:
        here = [part for part in found.stretches if part.clock <= onset < part.end]
        bad = text.casefold().startswith("bad")
        for part in found.stretches if bad else here:
            begin, end = max(onset, part.clock), min(onset + duration, part.end)
            if part in here or begin < end:
                placed.append((begin - part.clock + part.place, max(end - begin, 0.0), text))
        lost += [] if here or bad else [text]
    placed += [(part.place, 0.0, "EDGE boundary") for part in found.stretches[1:]]
    onsets, durations, texts = zip(*placed, strict=True)
    return mne.Annotations(onsets, durations, texts), lost


def _onset(tal: bytes, path: Path, number: int) -> float:
    match = _ONSET.match(tal)
    if match is None:
        raise FedgeoError(f"{path}: record {number + 1} of this file with gaps (EDF+D) does not say when it begins")
    return float(match.group())


def _annotations(tal: bytes) -> list[tuple[float, float, str]]:
    """The annotations of one list with a time stamp; the record's own stamp has no text."""
    head, *texts = tal.split(b"\x14")
    onset, _, duration = head.partition(b"\x15")
    if not _ONSET.fullmatch(onset):
        return []
    return [(float(onset), float(duration or 0), decoded(text)) for text in texts if text]


def decoded(text: bytes) -> str:
    """UTF-8 as the format wants it, else Latin-1, which older recorders write."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _stretches(onsets: list[float], seconds: float, tolerance: float, path: Path) -> tuple[Stretch, ...]:
    firsts = [0]
    for number, onset in enumerate(onsets[1:], start=1):
        late = onset - (onsets[firsts[-1]] + (number - firsts[-1]) * seconds)
        if late < -tolerance:
            raise FedgeoError(
                f"{path}: record {number + 1} begins at {onset:g} s, before the one ahead of it has ended: "
                "export the recording again, continuous or with rising times"
            )
        if late > tolerance:
            firsts.append(number)
    lasts = [*firsts[1:], len(onsets)]
    return tuple(
        Stretch(onsets[first], first * seconds, (last - first) * seconds)
        for first, last in zip(firsts, lasts, strict=True)
    )
