"""Motor imagery sets by name, read by MOABB and processed like every other recording.

MOABB keeps its data under MNE_DATA (``~/mne_data`` if nothing is set) and fetches what is missing.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mne

from ...common.errors import FedgeoError
from .processing import BadChannels, Processing, Reference
from .recording import Opened, Recording, agree_channels, agree_rates, eeg_channels, read_header, refuse_truncated
from .subject_names import select_subjects
from .subjects import cut_subject, scaled
from .trial_cache import cached, file_hash
from .trials import Trials, check_agreement

PHYSIONETMI_CLASSES = ("left_hand", "right_hand", "hands", "feet")
PHYSIONETMI_EXCLUDED = (88, 92, 100)  # at 128 Hz; the paper leaves out three subjects without naming them
WEIBO2014_CLASSES = (*PHYSIONETMI_CLASSES, "left_hand_right_foot", "right_hand_left_foot", "rest")

# Under which name MNE's configuration knows the folder, and what there is to fetch.
_FOLDERS = {"PhysionetMI": "EEGBCI", "Weibo2014": "WEIBO"}
_SIZES = {"PhysionetMI": "about 1.7 GB", "Weibo2014": "about 2 GB"}


def eeg_moabb(
    name: str,
    *,
    events: Sequence[str],
    interval: tuple[float, float] | None = None,
    subjects: Sequence[int] | None = None,
    exclude: Sequence[int] = (),
    band: tuple[float, float] | None = (8.0, 32.0),
    notch: float | None = None,
    resample: float | None = None,
    scale: float | Mapping[str | int, float] = 1.0,
    channels: str | Sequence[str] = "all",
    bad_channels: BadChannels = "refuse",
    reference: Reference = "none",
    rename: Mapping[str, str] | None = None,
    path: str | Path | None = None,
    cache: str | Path | None = None,
) -> list[Trials]:
    """The trials of a MOABB motor imagery set.

    name: MOABB's class, in any case (``PhysionetMI``). events: its classes, named, in the order wanted (a
    mere number of classes would let ``rest`` in). interval: seconds from the set's own event; None is the
    set's own. subjects: None is all; exclude: left out of them. band, notch, resample, scale, channels: as for
    ``eeg_folder``. path: MNE_DATA for this call. cache: a folder for the processed trials.

    Raises FedgeoError for an unknown set or event, and for missing data: where it was looked for and what to
    fetch.
    """
    if bad_channels == "drop":
        raise FedgeoError(
            f"data.bad_channels=drop needs all recordings at once, {name} is read by subject: set interpolate, or list "
            "the other channels in data.channels"
        )
    with _moabb_environment(path):
        dataset = _dataset(name, events)
        start, stop = dataset.interval if interval is None else interval
        processing = Processing(
            events={event: event for event in events},
            # MOABB puts its annotations where the set's own interval begins.
            window=(float(start - dataset.interval[0]), float(stop - dataset.interval[0])),
            band=band,
            notch=notch,
            resample=resample,
            microvolts=dataset.unit_factor,
            bad_channels=bad_channels,
            reference=reference,
        )
        everyone = [(str(subject), subject) for subject in dataset.subject_list]
        chosen = select_subjects(everyone, [text for text, _ in everyone], subjects, where=name)
        folder = None if cache is None else Path(cache).expanduser()
        result = [
            _subject(dataset, subject, scaled(processing, str(subject), scale), channels, rename, folder)
            for _, subject in chosen
            if subject not in exclude
        ]
    check_agreement(result)
    return result


def physionetmi(
    *,
    subjects: Sequence[int] | None = None,
    events: Sequence[str] = PHYSIONETMI_CLASSES,
    exclude: Sequence[int] = PHYSIONETMI_EXCLUDED,
    path: str | Path | None = None,
    cache: str | Path | None = None,
) -> list[Trials]:
    """PhysionetMI as in the paper: four classes, [0, 3] s (481 samples at 160 Hz), 8-32 Hz, 106 subjects."""
    return eeg_moabb(
        "PhysionetMI",
        events=events,
        interval=(0, 3),
        subjects=subjects,
        exclude=exclude,
        path=path,
        cache=cache,
    )


def weibo2014(
    *, subjects: Sequence[int] | None = None, path: str | Path | None = None, cache: str | Path | None = None
) -> list[Trials]:
    """Weibo2014 as in the paper: seven classes, [3, 7] s (801 samples at 200 Hz), 8-32 Hz, 60 channels."""
    return eeg_moabb("Weibo2014", events=WEIBO2014_CLASSES, interval=(3, 7), subjects=subjects, path=path, cache=cache)


@contextmanager
def _moabb_environment(path: str | Path | None) -> Iterator[None]:
    """Where MOABB looks, and that it asks the set's own host: offline, its mirror costs 39 s a subject."""
    settings = {"MOABB_DOWNLOAD_PROVIDER": "upstream"}
    if path is not None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise FedgeoError(f"data.path={folder} is not a folder")
        settings |= {"MNE_DATA": str(folder)} | {f"MNE_DATASETS_{key}_PATH": str(folder) for key in _FOLDERS.values()}
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _dataset(name: str, events: Sequence[str]) -> Any:
    """MOABB's dataset object, set to read no more recordings than the events need."""
    from moabb.datasets.utils import dataset_list  # takes seconds, so not before it is wanted

    known = {kind.__name__.casefold(): kind for kind in dataset_list}
    if name.casefold() not in known:
        close = [known[key].__name__ for key in difflib.get_close_matches(name.casefold(), known)]
        raise FedgeoError(f"MOABB has no data set {name!r}" + (f"; it has {', '.join(close)}" if close else ""))
    dataset = known[name.casefold()]()
    kind = type(dataset).__name__
    if dataset.paradigm != "imagery":
        raise FedgeoError(f"{kind} is a {dataset.paradigm} set, not motor imagery")
    unknown = [event for event in events if event not in dataset.event_id]
    if unknown or len(events) < 2:
        raise FedgeoError(f"{kind} needs data.events, two or more of {sorted(dataset.event_id)}, not {list(events)}")
    if kind == "PhysionetMI":
        dataset.hand_runs = dataset.hand_runs if {"left_hand", "right_hand"} & set(events) else []
        dataset.feet_runs = dataset.feet_runs if {"hands", "feet"} & set(events) else []
    return dataset


def _subject(
    dataset: Any,
    subject: int,
    processing: Processing,
    channels: str | Sequence[str],
    rename: Mapping[str, str] | None,
    cache: Path | None,
) -> Trials:
    files = _files(dataset, subject)
    for file in files:
        refuse_truncated(file, str(subject), file.name)

    def process() -> Trials:
        recordings = _recordings(dataset, subject, files, set(processing.events), rename)
        headers = [read_header(recording) for recording in recordings]
        agree_rates(recordings, headers, processing.resample)
        return cut_subject(recordings, processing, agree_channels(recordings, headers, channels))

    if cache is None or not files:
        return process()
    content = {
        "set": type(dataset).__name__,
        "moabb": version("moabb"),
        "files": [file_hash(file) for file in files],
        "channels": channels,
        "rename": dict(rename or {}),
    }
    return cached(cache, str(subject), content | processing.settings(), process)


def _files(dataset: Any, subject: int) -> list[Path]:
    """The files a subject is read from, fetched if they must be."""
    try:
        if type(dataset).__name__ == "PhysionetMI":  # its data_path asks for two runs without imagery as well
            found = dataset._load_data(subject, runs=dataset.hand_runs + dataset.feet_runs)
        else:
            found = dataset.data_path(subject)
    except Exception as error:  # each set has its own way of not finding its files
        raise _missing(dataset, subject, error) from error
    paths = [Path(item) for item in ([found] if isinstance(found, str | Path) else found)]
    inside = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [file for file in inside if file.is_file()]


def _recordings(
    dataset: Any, subject: int, files: Sequence[Path], events: set[str], rename: Mapping[str, str] | None
) -> list[Recording]:
    """The subject's runs that hold any of the events, loaded."""
    try:
        sessions = dataset.get_data(subjects=[subject])[subject]
    except OSError as error:
        raise _missing(dataset, subject, error) from error
    except Exception as error:
        where = ", ".join(str(file) for file in files) or "its files"
        detail = " ".join(str(error).split())[:200]
        raise FedgeoError(
            f"subject {subject} of {dataset}: cannot be read ({detail}): put a whole copy in the place of {where}"
        ) from error
    recordings = []
    for session, runs in sessions.items():
        for run, raw in runs.items():
            name = f"session {session} run {run}"
            if events & set(raw.annotations.description):
                ready = eeg_channels(raw, str(subject), name, rename)
                recordings.append(Recording(str(subject), name, tuple(files), partial(_given, ready)))
    if not recordings:
        raise FedgeoError(f"subject {subject} of {dataset}: no recording has any of the events {sorted(events)}")
    return recordings


def _given(raw: mne.io.BaseRaw) -> Opened:
    return Opened(raw.copy())


def _missing(dataset: Any, subject: int, error: Exception) -> FedgeoError:
    kind = type(dataset).__name__
    key = f"MNE_DATASETS_{_FOLDERS[kind]}_PATH" if kind in _FOLDERS else "MNE_DATA"
    folder = mne.get_config(key) or mne.get_config("MNE_DATA") or "~/mne_data"
    size = _SIZES.get(kind, "see moabb.neurotechx.com for its size")
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return FedgeoError(
        f"{kind}: subject {subject} is not complete under {folder} ({key} or MNE_DATA says where) and could not "
        f"be fetched ({reason}): where there is a network, run python -c 'from moabb.datasets import {kind} as D; "
        f"D().download()' ({size}), and put what it leaves in its MNE_DATA folder into {folder}"
    )
