"""A BIDS folder of EEG recordings, read by mne-bids: subjects from participants.tsv, events from
events.tsv."""

import csv
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path

import mne

from ...common.errors import FedgeoError
from .folder import select_subjects
from .processing import Processing, trials_of_subjects
from .recording import Recording, eeg_channels, refuse_truncated, unreadable
from .trials import RECORDINGS, Trials


def eeg_bids(
    path: str | Path,
    *,
    task: str,
    events: Mapping[str, str],
    subjects: Sequence[int | str] | None = None,
    sessions: Sequence[str] | None = None,
    runs: Sequence[int] | None = None,
    window: tuple[float, float] = (0.0, 3.0),
    band: tuple[float, float] | None = (8.0, 32.0),
    notch: float | Sequence[float] | None = None,
    resample: float | None = None,
    scale: float = 1.0,
    channels: str | Sequence[str] = "all",
    cache: str | Path | None = None,
) -> list[Trials]:
    """The trials of all subjects that participants.tsv lists, of one task.

    events: class name to ``trial_type`` (or ``value``) of events.tsv, in the order of the classes. subjects,
    sessions, runs: which to read, None for all. The rest is as for ``eeg_folder``. Channel types and bad
    channels come from channels.tsv; channels marked bad are kept and noted, since all subjects must have the
    same.

    Raises FedgeoError for a folder that is not BIDS, a subject without its recordings, and all that
    ``eeg_folder`` refuses.
    """
    import mne_bids  # takes seconds, so not before it is wanted

    root = Path(path).expanduser()
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
            recordings.append(Recording(subject, name, files, partial(_open, item, subject, name)))
    processing = Processing(
        events={str(name): str(text) for name, text in events.items()},
        window=(float(window[0]), float(window[1])),
        band=None if band is None else (float(band[0]), float(band[1])),
        notch=notch if notch is None or isinstance(notch, int | float) else tuple(notch),
        resample=resample,
        microvolts=1e6 * scale,
    )
    folder = None if cache is None else Path(cache).expanduser()
    return trials_of_subjects(recordings, processing, channels=channels, cache=folder)


def _participants(root: Path) -> list[str]:
    """The subjects of participants.tsv without their prefix, in its order."""
    table = root / "participants.tsv"
    if not table.is_file():
        raise FedgeoError(f"data.path={root} is not a BIDS folder: it has no participants.tsv")
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if not rows or "participant_id" not in rows[0]:
        raise FedgeoError(f"{table} lists no subject: expected a column participant_id")
    return [row["participant_id"].removeprefix("sub-") for row in rows]


def _open(item: object, subject: str, name: str) -> mne.io.BaseRaw:
    import mne_bids

    path: Path = item.fpath  # type: ignore[attr-defined]
    refuse_truncated(path, subject, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = mne_bids.read_raw_bids(item, verbose="ERROR")
    except Exception as error:
        raise unreadable(path, subject, name, error) from error
    return eeg_channels(raw, subject, name)
