"""Opening one EEG recording: file formats, truncated copies, and channel names that mean the same."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import mne

from ...common.errors import FedgeoError
from .edf_records import discontinuous, mapped
from .file_length import shortfall
from .reader_faults import cut_short, missing_partner, unreadable
from .stim_channel import events_of_stim_channel

mne.set_log_level("ERROR")

# The older names of four temporal and parietal electrodes.
_RENAMED = {"t3": "T7", "t4": "T8", "t5": "P7", "t6": "P8"}
_REFERENCE = re.compile(r"[\s_-]+(ref|le|avg?|ar|car|a1|a2|m1|m2)$", re.IGNORECASE)
_EGI = re.compile(r"E\d{1,3}")
_NOT_EEG = re.compile(
    r"^(ecg|ekg|[hv]?eog?|emg|resp|spo2|pulse|pleth|status|trig|trigger|stim?|mark|event|photic|gsr|dc)([^a-z].*)?$",
    re.IGNORECASE,
)


class Opened(NamedTuple):
    """A recording with its EEG channels under their normalised names, and what was done to it on the way."""

    raw: mne.io.BaseRaw
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """One recording to process.

    files: all it is read from, for its hash. open: reads it afresh, without its samples. label: its class, where the
    whole recording has one. rename: what ``open`` calls channels instead of the file's names.
    """

    subject: str
    name: str
    files: tuple[Path, ...]
    open: Callable[[], Opened]
    label: str | None = None
    rename: Mapping[str, str] | None = None

    def fault(self, message: str) -> FedgeoError:
        return FedgeoError(f"subject {self.subject}, {self.name}: {message}")


@cache
def _standard_names() -> dict[str, str]:
    names = mne.channels.make_standard_montage("standard_1005").ch_names
    return {name.casefold(): name for name in names} | _RENAMED


def normalise_channel(name: str) -> str:
    """The 10-05 name of a channel: ``Fp1.``, ``FP1`` and ``EEG Fp1-REF`` are Fp1, T3 is T7.

    A bipolar derivation (``Fp1-F7``) and a name outside the 10-05 system keep their own spelling.
    """
    text = re.sub(r"^(eeg|pol)[\s_-]+(?=[a-z])", "", name.strip().strip(".").strip(), flags=re.IGNORECASE)
    text = _REFERENCE.sub("", text).strip()
    return _standard_names().get(text.casefold(), text)


def read_recording(path: Path, subject: str, name: str, rename: Mapping[str, str] | None = None) -> Opened:
    """Open a recording (EDF, BDF, GDF, FIF, BrainVision, SET) without loading its samples.

    rename: the file's names of channels to others.

    Raises FedgeoError naming the file, and what to do, where it cannot be read.
    """
    raw = open_file(path, subject, name)
    notes = [*place_by_clock(raw, path), *events_of_stim_channel(raw)]
    return Opened(eeg_channels(raw, subject, name, rename), tuple(notes))


def open_file(path: Path, subject: str, name: str) -> mne.io.BaseRaw:
    """What mne reads of a file, with all its channels."""
    if partner := missing_partner(path):
        raise unreadable(path, subject, name, partner)
    refuse_truncated(path, subject, name)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            raw = _read(path)
    except Exception as error:  # mne's readers raise whatever the broken bytes lead to
        raise unreadable(path, subject, name, error) from error
    for warning in caught:
        if path.suffix.lower() in (".vhdr", ".set") and "outside data range" in str(warning.message):
            raise cut_short(path, subject, name, "events lie beyond the last sample")
    return raw


def _read(path: Path) -> mne.io.BaseRaw:
    """EDF and BDF want UTF-8; older recorders wrote their annotations in Latin-1."""
    try:
        return mne.io.read_raw(path, preload=False, verbose="WARNING")
    except Exception as error:
        if "latin1" not in str(error) and not isinstance(error, UnicodeDecodeError):
            raise
    return mne.io.read_raw(path, preload=False, encoding="latin1", verbose="WARNING")


def place_by_clock(raw: mne.io.BaseRaw, path: Path) -> list[str]:
    """Bring annotations that carry the time of the clock (EDF+D, BDF+D) to their samples. Returns what to note."""
    found = discontinuous(path, float(raw.info["sfreq"]))
    if found is None:
        return []
    placed, lost = mapped(found)
    raw.set_annotations(placed)
    gaps = len(found.stretches) - 1
    notes = [f"recorded with {gaps} gap{'s' if gaps > 1 else ''}, which no trial crosses"]
    if lost:
        texts = ", ".join(f"{text} ({count})" for text, count in sorted(Counter(lost).items()))
        notes.append(f"annotations in a gap dropped: {texts}")
    return notes


def eeg_channels(
    raw: mne.io.BaseRaw, subject: str, name: str, rename: Mapping[str, str] | None = None
) -> mne.io.BaseRaw:
    """The recording's EEG channels under their normalised names; what else it holds is left out.

    Raises FedgeoError where no EEG channel is left or two channels come to the same name.
    """
    types = dict(zip(raw.ch_names, raw.get_channel_types(), strict=True))
    eeg = [
        channel for channel, kind in types.items() if kind == "eeg" and not _NOT_EEG.match(normalise_channel(channel))
    ]
    if not eeg:
        raise FedgeoError(
            f"subject {subject}, {name}: no EEG channel among {sorted(types)} ({sorted(set(types.values()))})"
        )
    names = {channel: normalise_channel((rename or {}).get(channel, channel)) for channel in eeg}
    seen: dict[str, str] = {}
    for channel, new in names.items():
        if new in seen:
            raise FedgeoError(
                f"subject {subject}, {name}: {seen[new]!r} and {channel!r} are both channel {new}: rename one"
            )
        seen[new] = channel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return raw.pick(eeg).rename_channels(names)


def refuse_truncated(path: Path, subject: str, name: str) -> None:
    """Refuse a file that is shorter than its header says."""
    reason = shortfall(path)
    if reason is not None:
        raise cut_short(path, subject, name, reason)


@dataclass(frozen=True)
class Header:
    """What must agree before recordings are processed together. rate: Hz."""

    channels: tuple[str, ...]
    rate: float


def read_header(recording: Recording) -> Header:
    raw = recording.open().raw
    return Header(tuple(raw.ch_names), float(raw.info["sfreq"]))


def agree_channels(
    recordings: Sequence[Recording], headers: Sequence[Header], channels: str | Sequence[str]
) -> tuple[str, ...]:
    """The channels all recordings are brought to, in order.

    channels: ``all`` (every recording must have the same set), ``common`` (the intersection) or a list. A
    list fixes the order; otherwise it is alphabetical, so that sites that never meet still agree. Raises
    FedgeoError naming the subject, file and channel that is missing.
    """
    union: dict[str, Recording] = {}
    for recording, head in zip(recordings, headers, strict=True):
        union |= {channel: recording for channel in head.channels if channel not in union}
    if isinstance(channels, str) and channels == "common":
        common = set.intersection(*(set(head.channels) for head in headers))
        if not common:
            raise FedgeoError(
                f"the {len(recordings)} recordings have no channel in common: give data.channels as a list"
            )
        return tuple(sorted(common, key=str.casefold))
    if isinstance(channels, str) and channels != "all":
        raise FedgeoError(f"data.channels is {channels!r}: give all, common or a list of names")
    wanted = (
        sorted(union, key=str.casefold) if isinstance(channels, str) else [normalise_channel(name) for name in channels]
    )
    if not wanted or len(set(wanted)) != len(wanted):
        raise FedgeoError(f"data.channels must name each channel once, and at least one: {wanted}")
    for recording, head in zip(recordings, headers, strict=True):
        for channel in wanted:
            if channel not in head.channels:
                where = (
                    f", which subject {union[channel].subject}'s {union[channel].name} has" if channel in union else ""
                )
                odd = [name for name in dict.fromkeys((*head.channels, *union)) if _EGI.fullmatch(name)]
                if odd:
                    raise recording.fault(
                        f"no channel {channel}{where}; {', '.join(odd[:3])} are names of an EGI net, which have no "
                        f"10-05 names: rename those to use, such as data.rename={{{odd[0]}: Fz}}, and list them in "
                        "data.channels"
                    )
                raise recording.fault(
                    f"no channel {channel}{where}: leave the recording out, set data.channels=common "
                    "or list those to use"
                )
    return tuple(wanted)


def agree_rates(recordings: Sequence[Recording], headers: Sequence[Header], resample: float | None) -> None:
    """Refuse recordings with different sampling rates, unless they are resampled to one."""
    first, rate = recordings[0], headers[0].rate
    for recording, head in zip(recordings, headers, strict=True):
        if resample is None and head.rate != rate:
            raise recording.fault(
                f"sampled at {head.rate:g} Hz, subject {first.subject}'s {first.name} at {rate:g} Hz: "
                f"set data.resample={min(head.rate, rate):g}, or leave one out"
            )
