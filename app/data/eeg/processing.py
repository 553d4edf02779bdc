"""From recordings to trials: checks, filters, resampling, cutting. The same for every EEG source."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import mne
import numpy as np

from ...common.errors import FedgeoError
from .copies import without_copies
from .filters import Filters
from .recording import Recording, agree_channels, agree_rates, read_header, unreadable
from .segments import Segment, pieces, segments, within
from .trial_cache import cached, file_hash
from .trials import Trials, check_agreement

TYPICAL_STD = 20.0  # microvolt: what a channel of scalp EEG deviates by within a second

CROSSING = ("across a splice", "in a segment shorter than the filters")


@dataclass(frozen=True)
class Processing:
    """How recordings become trials, the same for all of them.

    events: class name to annotation (or to the label of a labels file); its order is the order of the
    classes. window: seconds from the event, both ends included. windows: (length, step) in seconds of windows
    cut side by side from labelled recordings, instead of events. band, notch, resample: see ``Filters``.
    microvolts: how many one unit of the reader is.
    """

    events: dict[str, str]
    window: tuple[float, float] = (0.0, 3.0)
    windows: tuple[float, float] | None = None
    band: tuple[float, float] | None = (8.0, 32.0)
    notch: float | tuple[float, ...] | None = None
    resample: float | None = None
    microvolts: float = 1e6

    def __post_init__(self) -> None:
        values = list(self.events.values())
        if len(self.events) < 2 or len(set(values)) != len(values):
            raise FedgeoError(f"data.events must give two classes or more, each its own annotation: {self.events}")
        if self.window[0] >= self.window[1]:
            raise FedgeoError(f"data.window {list(self.window)} must end after it starts")
        if self.windows is not None and min(self.windows) <= 0:
            raise FedgeoError(f"data.windows {list(self.windows)} must be a positive length and step in seconds")
        if self.band is not None and not 0 < self.band[0] < self.band[1]:
            raise FedgeoError(f"data.band {list(self.band)} must be two rising frequencies in Hz")

    @property
    def filters(self) -> Filters:
        return Filters(self.band, self.notch, self.resample)

    def settings(self) -> dict:
        """All that decides the trials beside the recordings and channels, for the key of a cache."""
        return {"processing": asdict(self), "classes": list(self.events), "mne": mne.__version__}


def trials_of_subjects(
    recordings: Sequence[Recording],
    processing: Processing,
    *,
    channels: str | Sequence[str] = "all",
    cache: Path | None = None,
) -> list[Trials]:
    """Process recordings subject by subject, in the order of their first recordings.

    channels: ``all``, ``common`` or a list (see ``agree_channels``). cache: a folder; what it holds is read
    back as memory maps. Raises FedgeoError for recordings that do not fit together or cannot be used.
    """
    recordings, copies = without_copies(recordings)
    headers = [read_header(recording) for recording in recordings]
    agreed = agree_channels(recordings, headers, channels)
    agree_rates(recordings, headers, processing.resample)
    by_subject: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_subject.setdefault(recording.subject, []).append(recording)
    subjects = [_subject(own, processing, agreed, cache) for own in by_subject.values()]
    subjects = [replace(item, notes=(*copies.get(item.subject, ()), *item.notes)) for item in subjects]
    check_agreement(subjects)
    return subjects


def _subject(
    recordings: Sequence[Recording], processing: Processing, channels: tuple[str, ...], cache: Path | None
) -> Trials:
    if cache is None:
        return cut_subject(recordings, processing, channels)
    content = {
        "files": [[item.name, item.label, *map(file_hash, item.files)] for item in recordings],
        "channels": channels,
    }
    settings = content | processing.settings()
    return cached(cache, recordings[0].subject, settings, lambda: cut_subject(recordings, processing, channels))


@dataclass(frozen=True)
class _Cut:
    trials: np.ndarray
    labels: np.ndarray
    rate: float
    average_reference: bool
    notes: list[str]


def _cut(recording: Recording, channels: tuple[str, ...], processing: Processing) -> _Cut:
    """The trials of one recording."""
    raw, said = recording.open()
    left_out = [name for name in raw.ch_names if name not in channels]
    notes = [*said, *([f"channels left out: {', '.join(left_out)}"] if left_out else [])]
    marked = [name for name in raw.info["bads"] if name in channels]
    notes += [f"channels marked bad, kept: {', '.join(marked)}"] if marked else []
    try:
        raw.pick(list(channels)).reorder_channels(list(channels)).load_data()
    except Exception as error:  # a file can also break off among its samples
        raise unreadable(recording.files[0], recording.subject, recording.name, error) from error
    _refuse_not_finite(raw, recording)
    cut = _events if recording.label is None else _windows
    events = cut(raw, recording, processing)
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
    _refuse_flat(epochs[whole], recording)
    notes += _check_unit(raw, recording, processing.microvolts)
    average = _average_reference(raw)
    if average:
        notes.append(f"average reference: covariances have rank {len(channels) - 1} of {len(channels)}")
    _refuse_narrow(raw, recording, processing)
    data, labels, rate = _filtered(raw, events[kept], found, processing)
    if len(labels) < len(kept):
        notes.append(f"{len(kept) - len(labels)} trials at the end of a segment dropped (too short once resampled)")
    return _Cut(data, labels, rate, average, notes)


def _crossing(
    raw: mne.io.BaseRaw, found: tuple[Segment, ...], epochs: mne.Epochs, processing: Processing
) -> np.ndarray:
    """Which trials cannot be cut from one filtered segment, bool (n, 2) by the reasons of ``CROSSING``."""
    rate = float(raw.info["sfreq"])
    if len(found) == 1 and len(found[0]) == raw.n_times:
        return np.zeros((len(epochs), len(CROSSING)), dtype=bool)
    first = epochs.events[:, 0] - raw.first_samp + round(epochs.tmin * rate)
    place = within(found, first, first + len(epochs.times) - 1)
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


def cut_subject(recordings: Sequence[Recording], processing: Processing, channels: tuple[str, ...]) -> Trials:
    """One subject's trials of ``channels``, which each of the recordings must have."""
    cuts = [_cut(recording, channels, processing) for recording in recordings]
    labels = np.concatenate([cut.labels for cut in cuts])
    classes = tuple(processing.events)
    notes = _gather([(recording.name, cut.notes) for recording, cut in zip(recordings, cuts, strict=True)])
    notes += [f"no trial of class {name}" for index, name in enumerate(classes) if index not in labels]
    return Trials(
        subject=recordings[0].subject,
        trials=np.concatenate([cut.trials for cut in cuts]),
        labels=labels,
        run=np.repeat(np.arange(len(cuts)), [len(cut.labels) for cut in cuts]),
        recordings=tuple(recording.name for recording in recordings),
        channels=channels,
        rate=cuts[0].rate,
        classes=classes,
        average_reference=any(cut.average_reference for cut in cuts),
        windowed=recordings[0].label is not None,
        notes=tuple(notes),
    )


def _gather(by_recording: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Notes with the recordings they are about; one that all recordings share comes once."""
    shared = [note for note in by_recording[0][1] if all(note in notes for _, notes in by_recording)]
    if len(by_recording) == 1:
        shared = []
    rest = [f"{name}: {note}" for name, notes in by_recording for note in notes if note not in shared]
    return [f"all recordings: {note}" for note in shared] + rest


def _events(raw: mne.io.BaseRaw, recording: Recording, processing: Processing) -> np.ndarray:
    """mne events (k, 3) of the mapped annotations, numbered from 1 in the order of the classes."""
    present = sorted(set(raw.annotations.description))
    codes = {text: code for code, text in enumerate(processing.events.values(), start=1)}
    if not codes.keys() & present:
        raise recording.fault(
            f"no event: none of the annotations {sorted(codes)} ({', '.join(processing.events)}); "
            f"it has {present or 'none at all'}: correct data.events, or leave the recording out by data.runs"
        )
    events, _ = mne.events_from_annotations(
        raw, event_id={text: codes[text] for text in present if text in codes}, regexp=None
    )
    events = np.unique(events, axis=0)
    times, counts = np.unique(events[:, 0], return_counts=True)
    if (counts > 1).any():
        second = (times[counts > 1][0] - raw.first_samp) / raw.info["sfreq"]
        raise recording.fault(f"two classes have an event at {second:.3f} s: correct the annotations or data.events")
    return events


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


def _refuse_not_finite(raw: mne.io.BaseRaw, recording: Recording) -> None:
    broken = [name for name, row in zip(raw.ch_names, raw.get_data(), strict=True) if not np.isfinite(row).all()]
    if broken:
        raise recording.fault(
            f"channel {', '.join(broken)} holds values that are not numbers (NaN or infinite): repair or "
            "leave out the recording, or list the other channels in data.channels"
        )


def _refuse_flat(epochs: mne.Epochs, recording: Recording) -> None:
    """A channel that does not move during a trial has no covariance; looked for before any filter."""
    flat = np.ptp(epochs.get_data(copy=False), axis=2) == 0
    for channel, trials in zip(epochs.ch_names, flat.sum(axis=0), strict=True):
        if trials:
            raise recording.fault(
                f"channel {channel} is flat in {trials} of {len(epochs)} trials: leave out the recording, "
                "mark the time as BAD_, or list the other channels in data.channels"
            )


def typical_spread(raw: mne.io.BaseRaw, microvolts: float) -> float:
    """The size of a recording, in microvolt: the median over channels of their median deviation within a second.

    It is measured before any filter, and by the second, so that slow drifts and the choice of band do not matter.
    """
    length = min(round(raw.info["sfreq"]), raw.n_times)
    count = raw.n_times // length
    spread = raw.get_data(stop=count * length).reshape(len(raw.ch_names), count, length).std(axis=2) * microvolts
    moving = np.where(spread > 0, spread, np.nan)
    return float(np.nanmedian(np.nanmedian(moving, axis=1)))


def unit_factor(spread: float) -> float:
    """The power of 1000 that brings a recording's size to that of scalp EEG; 1 where its unit can be right."""
    return float(10.0 ** (3 * round(np.log10(TYPICAL_STD / spread) / 3)))


def wrong_unit(spread: float) -> str:
    """What to say of a recording whose size can only be another unit's."""
    return (
        f"a channel's standard deviation is {spread:.3g} microvolt, expected 1 to 100, so the unit is "
        f"wrong: multiply data.scale by {unit_factor(spread):g}, or correct the unit in its header"
    )


def _check_unit(raw: mne.io.BaseRaw, recording: Recording, microvolts: float) -> list[str]:
    """Refuse a recording whose size can only be another unit's; note one that is merely unusual."""
    typical = typical_spread(raw, microvolts)
    if unit_factor(typical) != 1:
        raise recording.fault(wrong_unit(typical))
    if not 1 <= typical <= 100:
        return [f"unusual size: a channel's standard deviation is {typical:.3g} microvolt"]
    return []


def _average_reference(raw: mne.io.BaseRaw) -> bool:
    """Whether the channels add up to zero at every time (to the precision that files are written with)."""
    data = raw.get_data()
    return len(data) > 1 and float(data.mean(axis=0).std()) < 0.01 * float(np.median(data.std(axis=1)))
