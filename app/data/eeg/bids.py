"""A BIDS folder of EEG recordings, read by mne-bids: subjects from participants.tsv, events from
events.tsv."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path

from ...common.errors import FedgeoError
from .edf_records import discontinuous
from .processing import BadChannels, Processing, Reference
from .reader_faults import unreadable
from .recording import Opened, Recording, eeg_channels, open_file
from .segments import segments
from .subject_names import select_subjects
from .subjects import trials_of_subjects
from .text_tables import read_table, refuse_mixed_encoding
from .trials import RECORDINGS, Trials


def eeg_bids(
    path: str | Path,
    *,
    task: str,
    events: Mapping[str, str | int],
    subjects: Sequence[int | str] | None = None,
    sessions: Sequence[str] | None = None,
    runs: Sequence[int] | None = None,
    window: tuple[float, float] = (0.0, 3.0),
    band: tuple[float, float] | None = (8.0, 32.0),
    notch: float | Sequence[float] | None = None,
    resample: float | None = None,
    scale: float | Mapping[str | int, float] = 1.0,
    channels: str | Sequence[str] = "all",
    bad_channels: BadChannels = "refuse",
    reference: Reference = "none",
    rename: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
) -> list[Trials]:
    """The trials of all subjects that participants.tsv lists, of one task.

    events: class name to ``trial_type`` (or ``value``) of events.tsv, in the order of the classes. subjects,
    sessions, runs: which to read, None for all. The rest is as for ``eeg_folder``. Channel types and bad
    channels come from channels.tsv.

    Raises FedgeoError for a folder that is not BIDS, a subject without its recordings, and all that
    ``eeg_folder`` refuses.
    """
    recordings = bids_recordings(Path(path).expanduser(), task, subjects, sessions, runs, rename)
    processing = Processing(
        events={str(name): str(text) for name, text in events.items()},
        window=(float(window[0]), float(window[1])),
        band=None if band is None else (float(band[0]), float(band[1])),
        notch=notch if notch is None or isinstance(notch, int | float) else tuple(notch),
        resample=resample,
        bad_channels=bad_channels,
        reference=reference,
    )
    folder = None if cache is None else Path(cache).expanduser()
    return trials_of_subjects(recordings, processing, channels=channels, scale=scale, cache=folder)


def bids_recordings(
    root: Path,
    task: str,
    subjects: Sequence[int | str] | None = None,
    sessions: Sequence[str] | None = None,
    runs: Sequence[int] | None = None,
    rename: Mapping[str, str] | None = None,
) -> list[Recording]:
    """The recordings of one task of the subjects that participants.tsv lists. The arguments are ``eeg_bids``'s."""
    import mne_bids  # takes seconds, so not before it is wanted

    listed = _participants(root)
    chosen = [
        subject for (subject,) in select_subjects([(s,) for s in listed], listed, subjects, where=f"data.path={root}")
    ]
    recordings = []
    for subject in chosen:
        found = mne_bids.find_matching_paths(
            root,
            subjects=subject,
            sessions=sessions,
            tasks=task,
            datatypes="eeg",
            suffixes="eeg",
            extensions=list(RECORDINGS),
        )
        found = [item for item in found if runs is None or (item.run is not None and int(item.run) in runs)]
        if not found:
            among = f" among runs {list(runs)}" if runs is not None else ""
            raise FedgeoError(f"subject {subject} of participants.tsv has no EEG of task {task!r}{among} in {root}")
        for item in sorted(found, key=lambda item: str(item.fpath)):
            name = str(item.fpath.relative_to(root))
            # events.tsv and channels.tsv decide the trials too, so they count for the hash
            parts = sorted(item.fpath.parent.glob(escape(item.fpath.stem.removesuffix("_eeg")) + "_*"))
            files = (item.fpath, *(part for part in parts if part != item.fpath))
            opened = partial(_open, item, subject, name, rename)
            recordings.append(Recording(subject, name, files, opened, rename=rename))
    return recordings


def _participants(root: Path) -> list[str]:
    """The subjects of participants.tsv without their prefix, in its order."""
    table = root / "participants.tsv"
    if not table.is_file():
        raise FedgeoError(f"data.path={root} is not a BIDS folder: it has no participants.tsv")
    _, rows = read_table(table, "\t")
    if not rows or "participant_id" not in rows[0]:
        raise FedgeoError(f"{table} lists no subject: expected a column participant_id")
    return [row["participant_id"].removeprefix("sub-") for row in rows]


def _open(item: object, subject: str, name: str, rename: Mapping[str, str] | None) -> Opened:
    """The recording with the events of events.tsv and the channels of channels.tsv."""
    import mne_bids

    path: Path = item.fpath  # type: ignore[attr-defined]
    own = open_file(path, subject, name)
    rate = float(own.info["sfreq"])
    if discontinuous(path, rate) is not None:
        raise FedgeoError(
            f"subject {subject}, {name}: recorded with gaps (EDF+D), and BIDS does not say whether onsets count them: "
            "read it with data=eeg_folder, by its own annotations, or export it without gaps"
        )
    stem = path.stem.removesuffix("_eeg")
    for table in (path.with_name(f"{stem}_events.tsv"), path.with_name(f"{stem}_channels.tsv")):
        refuse_mixed_encoding(table)
    _refuse_other_samples(path.with_name(f"{stem}_events.tsv"), rate)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = mne_bids.read_raw_bids(item, verbose="ERROR")
    except Exception as error:
        raise unreadable(path, subject, name, error) from error
    # mne-bids puts the table's events in the place of the file's, its splices among them
    starts = [segment.start / rate for segment in segments(own) if segment.start > 0]
    for start in starts:
        raw.annotations.append(raw.first_time + start, 0.0, "EDGE boundary")
    return Opened(eeg_channels(raw, subject, name, rename))


def _refuse_other_samples(table: Path, rate: float) -> None:
    """mne-bids reads onset; where sample names another time, one of the columns is wrong."""
    if not table.is_file():
        return
    for line, row in enumerate(read_table(table, "\t")[1], start=2):
        try:
            onset, sample = float(row["onset"]), float(row["sample"])
        except (KeyError, ValueError):  # no such column, or n/a
            continue
        if abs(sample - onset * rate) > 1 + 1e-6:
            raise FedgeoError(
                f"{table}, line {line}: sample {sample:g} is at {sample / rate:.3f} s, onset says {onset:g} s "
                f"({rate:g} Hz): correct the column that is wrong"
            )
