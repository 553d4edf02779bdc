"""Segments: what of a recording was recorded without a break.

Samples on either side of a splice were not recorded side by side, so no filter, no resampling and no trial may reach
over one.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import mne
import numpy as np

SKIP = "bad_acq_skip"  # what mne calls time that was not recorded: its samples are zeros, its clock goes on
_SPLICES = ("boundary", "edge boundary")  # EEGLAB, and mne where it joins recordings
_CODES = {".set": "-99", ".gdf": "32766"}  # the same as a number: EEGLAB's boundary, GDF's start of a new run
_BRAINVISION = "new segment/"


@dataclass(frozen=True)
class Segment:
    """Samples ``start`` to ``stop`` (not included) of a recording."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def segments(raw: mne.io.BaseRaw) -> tuple[Segment, ...]:
    """The segments of a recording in order; a single one where it has no splice. Numbers count from its first sample.

    A splice lies at the first sample that is not before its annotation (EEGLAB's lie between two samples), whatever
    duration it states: that is what was cut out. BrainVision's first ``New Segment`` marks the first sample, so it is
    none (mne leaves it out).
    """
    rate = float(raw.info["sfreq"])
    suffix = str(raw.filenames[0])[-4:].lower() if raw.filenames and raw.filenames[0] else ""
    onsets = (raw.annotations.onset - raw.first_time) * rate
    texts = [str(text).casefold() for text in raw.annotations.description]
    cuts: set[int] = set()
    skipped: list[tuple[int, int]] = []
    for onset, duration, text in sorted(zip(onsets, raw.annotations.duration * rate, texts, strict=True)):
        place = int(np.ceil(onset - 1e-3))
        if text.startswith(_BRAINVISION) or text in _SPLICES or text == _CODES.get(suffix):
            cuts.add(place)
        elif text == SKIP:
            skipped.append((place, int(np.ceil(onset + duration - 1e-3))))
    edges = sorted({0, raw.n_times, *(cut for cut in cuts | {e for skip in skipped for e in skip} if cut > 0)})
    found = [Segment(a, b) for a, b in itertools.pairwise(edges) if b <= raw.n_times]
    return tuple(s for s in found if not any(a <= s.start < b for a, b in skipped))


def pieces(raw: mne.io.BaseRaw, found: tuple[Segment, ...]) -> Iterator[tuple[Segment, mne.io.BaseRaw]]:
    """Each segment as a recording of its own; the recording itself where it is a single one, end to end."""
    if found == (Segment(0, raw.n_times),):
        yield found[0], raw
        return
    for segment in found:
        yield segment, mne.io.RawArray(raw.get_data(start=segment.start, stop=segment.stop), raw.info, verbose="ERROR")


def within(found: tuple[Segment, ...], first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The segment that each trial lies in, int64 (n,), -1 for one that reaches over its end.

    first, last: the trials' first and last samples, int64 (n,), counted from the recording's first.
    """
    place = np.full(len(first), -1, dtype=np.int64)
    for number, segment in enumerate(found):
        place[(first >= segment.start) & (last < segment.stop)] = number
    return place
