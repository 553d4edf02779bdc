"""A trained model on new EEG recordings, processed as its training data were."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ..common.errors import FedgeoError
from ..data.eeg.folder import find_files, list_recordings
from ..data.eeg.processing import Processing
from ..data.eeg.recording import Recording, read_header
from ..data.eeg.subject_names import refuse_ambiguous
from ..data.eeg.subjects import trials_of_subjects
from ..data.eeg.trials import Trials
from ..geometry import covariances
from .predict import Predictions, Trained, classify

FEW = 10  # trials below which a subject's own mean or statistics are shaky
UNUSED = "\0"  # an annotation that no recording has


def predict_recordings(
    trained: Trained,
    source: Path,
    *,
    events: Sequence[str] = (),
    windows: tuple[float, float] | None = None,
    scale: float = 1.0,
    resample: bool = False,
    subject_pattern: str | None = None,
) -> Predictions:
    """Of every trial in a recording, or in all recordings of a folder.

    events: the annotations that begin a trial, by default those of training. windows: (length, step) in seconds of
    windows side by side, instead of trials at events; the default where the model was trained on such. scale: a factor
    for recordings whose header tells the wrong unit. resample: bring another sampling rate to the model's.
    """
    if not trained.eeg:
        raise FedgeoError(f"{source}: {trained.path.name} reads embeddings of images: give images or embeddings")
    if windows is None and not events and trained.described["data"]["windows"] is not None:
        length, step = trained.described["data"]["windows"]
        windows = (float(length), float(step))
    rename = trained.described["data"].get("rename")
    recordings = _recordings(source, windows is not None, trained.classes[0], subject_pattern, rename)
    rate = _check(trained, recordings, resample)
    processing = _processing(trained, events, windows, rate)
    subjects = trials_of_subjects(recordings, processing, channels=trained.facts["channels"], scale=scale)
    names, parts, notes = [], [], []
    for trials in subjects:
        _check_trials(trained, trials)
        x, found = _inputs(trained, trials)
        parts.append(classify(trained, x))
        names += _names(trials)
        notes += [f"subject {trials.subject}: {words}" for words in found]
    return Predictions(tuple(names), np.concatenate(parts), trained.classes, tuple(notes))


def _recordings(
    source: Path, windowed: bool, label: str, pattern: str | None, rename: Mapping[str, str] | None
) -> list[Recording]:
    root = source.parent if source.is_file() else source
    files = [source] if source.is_file() else find_files(source)
    if pattern is None:
        refuse_ambiguous(files, root)
    labels = dict.fromkeys(files, label) if windowed else None
    return [item for item, _ in list_recordings(root, files, pattern, labels, rename)]


def _check(trained: Trained, recordings: Sequence[Recording], resample: bool) -> float | None:
    """Refuse recordings that lack a channel or have another rate. Returns the rate to resample to, None for none."""
    wanted, rate = trained.facts["channels"], float(trained.facts["sampling rate"])
    configured = trained.described["data"]["resample"]
    for recording in recordings:
        head = read_header(recording)
        if missing := [name for name in wanted if name not in head.channels]:
            raise recording.fault(
                f"no channel {', '.join(missing)}, which {trained.path.name} reads ({len(wanted)} channels: "
                f"{', '.join(wanted)}); it has {', '.join(head.channels)}"
            )
        if configured is None and not resample and head.rate != rate:
            raise recording.fault(
                f"sampled at {head.rate:g} Hz, {trained.path.name} reads {rate:g} Hz: resample it, or give --resample"
            )
    return rate if configured is not None or resample else None


def _processing(
    trained: Trained, events: Sequence[str], windows: tuple[float, float] | None, rate: float | None
) -> Processing:
    """How the recordings become trials: as in training, but for what begins one."""
    data = trained.described["data"]
    known = {str(name): str(text) for name, text in (data["events"] or {}).items()}
    if windows is not None or not known:
        known = {name: name for name in trained.classes}
    if events:
        known = {text: text for text in events}
        if len(known) == 1:  # what follows wants two classes, as training does
            known[UNUSED] = UNUSED
    band = data["band"]
    return Processing(
        events=known,
        window=(float(data["window"][0]), float(data["window"][1])),
        windows=windows,
        band=None if band is None else (float(band[0]), float(band[1])),
        notch=data["notch"],
        resample=rate,
        # the model reads these very channels, so none can be left out
        bad_channels="interpolate" if data.get("bad_channels") == "interpolate" else "refuse",
        reference=data.get("reference", "none"),
    )


def _check_trials(trained: Trained, trials: Trials) -> None:
    where = f"subject {trials.subject}"
    if not len(trials):
        raise FedgeoError(f"{where}: no trial: say which annotations begin one (--events) or cut windows (--windows)")
    covariances.check_trials(trials.trials, trials.channels, where)
    if trials.average_reference != trained.facts["average reference"]:
        had = "had" if trained.facts["average reference"] else "had not"
        raise FedgeoError(
            f"{where}: {'an' if trials.average_reference else 'no'} average reference, the training data of "
            f"{trained.path.name} {had} one: re-reference the recording"
        )


def _inputs(trained: Trained, trials: Trials) -> tuple[np.ndarray, list[str]]:
    """What the model reads of a subject, and what was taken from the new trials themselves, without labels."""
    shaky = f"; with fewer than {FEW} trials that is shaky" if len(trials) < FEW else ""
    if trained.model.inputs == "trials":
        x = covariances.zscore(trials.trials)
        trained.model.calibrate(torch.from_numpy(x))
        return x, [f"batch-norm statistics are those of its own {len(trials)} trials, without labels{shaky}"]
    chosen = trained.described["covariances"]
    found = covariances.covariances(trials.trials, chosen["estimator"])
    if not chosen["recentre"]:
        return found, []
    if len(trials) == 1:
        raise FedgeoError(
            f"subject {trials.subject}: one trial, and {trained.path.name} reads trials recentred by their subject's "
            "mean: give all trials of the session together"
        )
    note = f"recentred by the mean of its own {len(trials)} trials, without labels{shaky}"
    return covariances.recentre(found), [note]


def _names(trials: Trials) -> list[str]:
    """Each trial by its recording, and its number there from 1."""
    names = []
    for run, recording in enumerate(trials.recordings):
        count = int((trials.run == run).sum())
        names += [f"{recording} trial {number}" for number in range(1, count + 1)]
    return names
