"""One recording to trials: which events count, which channels can be used, filters by segment, cutting."""

from collections.abc import Sequence
from dataclasses import dataclass

import mne
import numpy as np

from ...common.errors import FedgeoError
from .channel_quality import (
    FLAT,
    average_reference,
    flat_trials,
    interpolate,
    typical_spread,
    unit_factor,
    unlike,
    wrong_unit,
)
from .processing import Processing
from .reader_faults import unreadable
from .recording import Recording
from .segments import Segment, pieces, segments, within

CROSSING = ("across a splice", "in a segment shorter than the filters")


@dataclass(frozen=True)
class Cut:
    """trials: float32 (n, channels, samples) in microvolt. labels: int64 (n,). rate: Hz."""

    trials: np.ndarray
    labels: np.ndarray
    rate: float
    average_reference: bool
    annotations: frozenset[str]
    notes: list[str]


@dataclass(frozen=True)
class _Loaded:
    """A recording with its samples. events: mne's (n, 3) of the trials that can be cut whole. bad, strange: channels,
    and what is odd about each.
    """

    raw: mne.io.BaseRaw
    events: np.ndarray
    segments: tuple[Segment, ...]
    bad: dict[str, str]
    strange: dict[str, str]
    notes: list[str]


def bad_channels(recording: Recording, channels: Sequence[str], processing: Processing) -> dict[str, str]:
    """Those of ``channels`` that cannot be used or that the file marks bad, and what is odd about each."""
    loaded = _load(recording, channels, processing)
    return dict.fromkeys(loaded.raw.info["bads"], "is marked bad") | loaded.bad


def cut(recording: Recording, channels: tuple[str, ...], processing: Processing) -> Cut:
    """The trials of one recording. FedgeoError, naming it and the channel, where it cannot be used."""
    loaded = _load(recording, channels, processing)
    raw, notes = loaded.raw, loaded.notes
    if processing.bad_channels == "interpolate":
        bad = dict.fromkeys(raw.info["bads"], "is marked bad") | loaded.bad
        if bad:
            try:
                interpolate(raw, list(bad))
            except FedgeoError as error:
                raise recording.fault(str(error)) from None
            notes.append(f"channels interpolated: {', '.join(f'{name} ({why})' for name, why in bad.items())}")
    else:
        _refuse_bad(recording, loaded.bad)
        marked = raw.info["bads"]
        notes += [f"channels marked bad, kept: {', '.join(marked)}"] if marked else []
    notes += [f"channel {name} {why}" for name, why in loaded.strange.items()]
    notes += _check_unit(raw, recording, processing)
    if processing.reference == "average":
        raw.set_eeg_reference("average", verbose="ERROR")
    average = average_reference(raw)
    if average:
        notes.append(f"average reference: covariances have rank {len(channels) - 1} of {len(channels)}")
    _refuse_narrow(raw, recording, processing)
    data, labels, rate = _filtered(raw, loaded.events, loaded.segments, processing)
    if lost := len(loaded.events) - len(labels):
        notes.append(f"{lost} trials at the end of a segment dropped (too short once resampled)")
    return Cut(data, labels, rate, average, frozenset(map(str, raw.annotations.description)), notes)


def _load(recording: Recording, channels: Sequence[str], processing: Processing) -> _Loaded:
    raw, said = recording.open()
    left_out = [name for name in raw.ch_names if name not in channels]
    notes = [*said, *([f"channels left out: {', '.join(left_out)}"] if left_out else [])]
    try:
        raw.pick(list(channels)).reorder_channels(list(channels)).load_data()
    except Exception as error:  # a file can also break off among its samples
        raise unreadable(recording.files[0], recording.subject, recording.name, error) from error
    bad, strange = unlike(raw, processing.microvolts)
    if processing.bad_channels == "refuse":  # before anything else that is wrong with it
        _refuse_bad(recording, {name: why for name, why in bad.items() if why != FLAT})
    if recording.label is None:
        events = _events(raw, recording, processing, said)
    else:
        events = _windows(raw, recording, processing)
    epochs = _epochs(raw, events, processing, drop_bad=True)
    reasons = {reason for log in epochs.drop_log for reason in log}
    found = segments(raw)
    crossing = _crossing(raw, found, epochs, processing)
    whole = ~crossing.any(axis=1)
    kept = epochs.selection[whole]
    reasons |= {reason for reason, hits in zip(CROSSING, crossing.T, strict=True) if hits.any()}
    if len(kept) < len(events):
        notes.append(f"{len(events) - len(kept)} of {len(events)} trials dropped ({', '.join(sorted(reasons))})")
        if not len(kept):
            raise recording.fault(f"no trial is left: {notes[-1]}")
    bad = bad | {name: why for name, why in flat_trials(epochs[whole]).items() if bad.get(name, FLAT) == FLAT}
    return _Loaded(raw, events[kept], found, bad, strange, notes)


def _refuse_bad(recording: Recording, bad: dict[str, str]) -> None:
    for name, why in bad.items():
        marks = ", mark the time as BAD_" if "trials" in why else ""
        raise recording.fault(
            f"channel {name} {why}: repair it or its unit{marks}, set data.bad_channels=drop or interpolate, or list "
            "the other channels in data.channels"
        )


def _crossing(
    raw: mne.io.BaseRaw, found: tuple[Segment, ...], epochs: mne.Epochs, processing: Processing
) -> np.ndarray:
    """Which trials cannot be cut from one filtered segment, bool (n, 2) by the reasons of ``CROSSING``."""
    rate = float(raw.info["sfreq"])
    if len(found) == 1 and len(found[0]) == raw.n_times:
        return np.zeros((len(epochs), len(CROSSING)), dtype=bool)
    event = epochs.events[:, 0] - raw.first_samp
    first = event + round(epochs.tmin * rate)
    place = within(found, np.minimum(first, event), np.maximum(first + len(epochs.times) - 1, event))
    lengths = np.array([len(segment) for segment in found])
    short = (place >= 0) & (lengths[place] < processing.filters.length(rate))
    return np.column_stack([place < 0, short])


def _filtered(
    raw: mne.io.BaseRaw, events: np.ndarray, found: tuple[Segment, ...], processing: Processing
) -> tuple[np.ndarray, np.ndarray, float]:
    """Each segment filtered by itself and cut: trials float32 (n, channels, samples), labels int64 (n,), rate in Hz."""
    parts = []
    for segment, piece in pieces(raw, found):
        start = segment.start + raw.first_samp
        own = events[(events[:, 0] >= start) & (events[:, 0] < start + len(segment))]
        if not len(own):
            continue
        own = own - [start - piece.first_samp, 0, 0]
        piece, own = processing.filters.apply(piece, own)
        epochs = _epochs(piece, own, processing, drop_bad=False)  # the bad ones are gone already
        data = (epochs.get_data(copy=False) * processing.microvolts).astype(np.float32)
        parts.append((data, epochs.events[:, 2].astype(np.int64) - 1, float(piece.info["sfreq"])))
    data, labels, rates = zip(*parts, strict=True)
    return np.concatenate(data), np.concatenate(labels), rates[0]


def _events(raw: mne.io.BaseRaw, recording: Recording, processing: Processing, notes: Sequence[str]) -> np.ndarray:
    """mne events (k, 3) of the mapped annotations, numbered from 1 in the order of the classes.

    notes: what was done to the recording, for the error.
    """
    present = sorted(set(raw.annotations.description))
    texts = list(processing.events.values())
    codes = {text: place + 1 for text in present if (place := class_of(text, texts)) is not None}
    if not codes:
        raise recording.fault(
            f"no event: none of the annotations {sorted(texts)} ({', '.join(processing.events)}); "
            f"it has {present or 'none at all'}{''.join(f' ({note})' for note in notes)}: correct data.events, or "
            "leave the recording out by data.runs"
        )
    events, _ = mne.events_from_annotations(raw, event_id=codes, regexp=None)
    events = np.unique(events, axis=0)
    times, counts = np.unique(events[:, 0], return_counts=True)
    if (counts > 1).any():
        second = (times[counts > 1][0] - raw.first_samp) / raw.info["sfreq"]
        raise recording.fault(f"two classes have an event at {second:.3f} s: correct the annotations or data.events")
    return events


def class_of(text: str, events: Sequence[str]) -> int | None:
    """The place of the class that an annotation begins: its own text, else the longest that it is a kind of.

    mne writes kinds with a slash, as mne-bids does where a trial_type has several values: ``right`` is ``right/20``.
    """
    if text in events:
        return events.index(text)
    kinds = [place for place, known in enumerate(events) if known and text.startswith(f"{known}/")]
    return max(kinds, key=lambda place: len(events[place]), default=None)


def _windows(raw: mne.io.BaseRaw, recording: Recording, processing: Processing) -> np.ndarray:
    """mne events (k, 3) at the starts of the fixed windows of a labelled recording."""
    assert processing.windows is not None and recording.label is not None
    length, step = processing.windows
    rate = raw.info["sfreq"]
    last = raw.n_times - round(length * rate)
    if last < 0:
        raise recording.fault(f"{raw.n_times / rate:.1f} s long, less than one window of {length:g} s")
    starts = np.round(np.arange(0, last / rate + 1e-9, step) * rate).astype(int)
    code = list(processing.events.values()).index(recording.label) + 1
    return np.column_stack([starts + raw.first_samp, np.zeros_like(starts), np.full_like(starts, code)])


def _epochs(raw: mne.io.BaseRaw, events: np.ndarray, processing: Processing, *, drop_bad: bool) -> mne.Epochs:
    if processing.windows is not None:
        tmin, tmax = 0.0, processing.windows[0] - 1 / raw.info["sfreq"]
    else:
        tmin, tmax = processing.window
    settings = {"tmin": tmin, "tmax": tmax, "baseline": None, "proj": False, "picks": "all", "preload": True}
    return mne.Epochs(raw, events, reject_by_annotation=drop_bad, **settings)


def _refuse_narrow(raw: mne.io.BaseRaw, recording: Recording, processing: Processing) -> None:
    """A band needs twice its upper end, of the lower of both sampling rates."""
    rate = min(float(raw.info["sfreq"]), processing.resample or np.inf)
    if processing.band is not None and processing.band[1] >= rate / 2:
        low, high = processing.band
        raise recording.fault(
            f"a band of {low:g}-{high:g} Hz needs more than {2 * high:g} Hz sampling, it has {rate:g}"
        )


def _check_unit(raw: mne.io.BaseRaw, recording: Recording, processing: Processing) -> list[str]:
    """Refuse a recording whose size can only be another unit's; note one that is merely unusual."""
    typical = typical_spread(raw, processing.microvolts)
    if unit_factor(typical) != 1:
        raise recording.fault(wrong_unit(typical, recording.subject, processing.microvolts / 1e6))
    if not 1 <= typical <= 100:
        return [f"unusual size: a channel's standard deviation is {typical:.3g} microvolt"]
    return []
