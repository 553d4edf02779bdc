"""The data set of EEG: subjects, read and split, two (or more) a client."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...algorithms.registry import local_algorithm
from ...common.errors import FedgeoError
from ...config.schema import Config, EegData
from ...geometry import covariances
from ...models import registry as models
from ...one_shot.fitted import Fitted
from ..cache_folder import cache_dir
from ..federated_dataset import Samples
from ..source import TEST, TRAIN, VAL
from .sources import registry as sources
from .subject_names import is_subject
from .trials import Trials, check_agreement, leave_subjects_out, split_subject

ORDINARY = ("channels left out: ", "average reference: ")  # notes of what the settings or the recording ask for
MOST, SHOWN = 20, 5  # warnings, and subjects named in one
PARTS = {"train": TRAIN, "val": VAL, "test": TEST}


@dataclass(frozen=True, eq=False)
class EegDataset:
    """Subjects in groups, one group a client, with every subject's own split; or whole subjects left out.

    members: the subjects of each client, indices into ``trials``. split: int8 (n,) for each subject.
    left_out: subjects that no client holds, by 'val' and 'test': the server evaluates on them.
    """

    config: Config
    trials: tuple[Trials, ...]
    members: tuple[tuple[int, ...], ...]
    split: tuple[np.ndarray, ...]
    left_out: dict[str, tuple[int, ...]]
    _inputs: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.trials[0].classes

    @property
    def domains(self) -> tuple[str, ...]:
        """Each subject is a domain, so that there are scores by subject."""
        return tuple(trials.subject for trials in self.trials)

    @property
    def inputs(self) -> dict[str, Any]:
        channels, samples = self.trials[0].trials.shape[1:]
        average = any(trials.average_reference for trials in self.trials)
        return {"channels": channels, "rank": channels - average, "samples": samples, "rate": self.trials[0].rate}

    @property
    def central(self) -> tuple[str, ...]:
        return ("val", "test") if self.left_out else ()

    def __len__(self) -> int:
        return len(self.members)

    def client_domain(self, client: int) -> str | None:
        subjects = self.members[client]
        return self.domains[subjects[0]] if len(subjects) == 1 else None

    def train(self, client: int) -> Samples:
        return self._gather("train", self.members[client])

    def held_out(self, part: str, client: int | None) -> Samples:
        if client is None:
            return self._gather(part, self.left_out[part])
        return self._gather(part, self.members[client])

    def facts(self, client: int) -> dict[str, Any]:
        """What must be alike at every site, of the client's first subject (its own agree already)."""
        first = self.trials[self.members[client][0]]
        data, processed = self.config.data, self.config.covariances
        assert isinstance(data, EegData)
        return {
            "channels": list(first.channels),
            "sampling rate": first.rate,
            "samples a trial": int(first.trials.shape[2]),
            "unit": "microvolt",
            "filter": data.band,
            "window": data.window,
            "average reference": any(self.trials[s].average_reference for s in self.members[client]),
            "covariance estimator": processed.estimator,
            "recentring": processed.recentre,
        }

    def partition_json(self) -> str:
        clients = [
            {"subjects": [self.domains[s] for s in subjects], "split": [self.split[s].tolist() for s in subjects]}
            for subjects in self.members
        ]
        left_out = {part: [self.domains[s] for s in subjects] for part, subjects in self.left_out.items()}
        notes = {t.subject: list(t.notes) for t in self.trials if t.notes}
        return json.dumps({"clients": clients, "left_out": left_out, "notes": notes}) + "\n"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was dropped, renamed or found missing, a line each."""
        return tuple(f"subject {t.subject}: {note}" for t in self.trials for note in t.notes if note != "simulated")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the notes that may change what is learned; one that several subjects share comes once."""
        subjects: dict[str, list[str]] = {}
        for trials in self.trials:
            for note in trials.notes:
                if note != "simulated" and not any(words in note for words in ORDINARY):
                    subjects.setdefault(note, []).append(trials.subject)
        lines = [
            f"subject{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}"
            f"{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}: {note}"
            for note, names in subjects.items()
        ]
        more = [f"{len(lines) - MOST} more notes on the recordings: see partition.json"] if len(lines) > MOST else []
        return (*lines[:MOST], *more)

    def _gather(self, part: str, subjects: tuple[int, ...]) -> Samples:
        chosen = [(s, np.flatnonzero(self.split[s] == PARTS[part])) for s in subjects]
        return Samples(
            np.concatenate([self._input(s)[rows] for s, rows in chosen]),
            np.concatenate([self.trials[s].labels[rows] for s, rows in chosen]),
            np.concatenate([np.full(len(rows), s, dtype=np.int64) for s, rows in chosen]),
        )

    def _input(self, subject: int) -> np.ndarray:
        """What the model reads of one subject: covariances float64, or z-scored trials float32."""
        if subject not in self._inputs:
            trials = self.trials[subject]
            where = f"subject {trials.subject}"
            covariances.check_trials(trials.trials, trials.channels, where)
            if self._reads_trials:
                self._inputs[subject] = covariances.zscore(trials.trials)
            else:
                self._inputs[subject] = self._covariances(subject, trials)
        return self._inputs[subject]

    @property
    def _reads_trials(self) -> bool:
        """Whether the model reads trials; else it reads covariances, as all models of fitted methods do."""
        fitted = isinstance(local_algorithm(self.config), Fitted)
        return not fitted and models.load(self.config.model).model.inputs == "trials"

    def _covariances(self, subject: int, trials: Trials) -> np.ndarray:
        """The subject's covariances, recentred without labels where the configuration says so.

        The mean is that of its training trials; a subject that is left out whole has none, so all its trials count.
        """
        chosen = self.config.covariances
        found = covariances.covariances(trials.trials, chosen.estimator)
        if not chosen.recentre:
            return found
        training = self.split[subject] == TRAIN
        try:
            return covariances.recentre(found, fit=training if training.any() else None)
        except FedgeoError as error:
            raise FedgeoError(f"subject {trials.subject}: {error}") from error


@functools.lru_cache(maxsize=4)
def eeg_dataset(config: Config) -> EegDataset:
    """The subjects that ``config.data`` names, split and dealt to clients. FedgeoError for what cannot be had."""
    data = config.data
    assert isinstance(data, EegData)
    if config.covariances.estimator not in covariances.ESTIMATORS:
        allowed = ", ".join(covariances.ESTIMATORS)
        raise FedgeoError(f"covariances.estimator={config.covariances.estimator}: must be one of {allowed}")
    trials = tuple(sources.load(data).read(data, seed=config.seed, cache=cache_dir(config) / "eeg"))
    check_agreement(trials)
    if config.engine != "deployment":  # a site may lack a class that another has
        _refuse_absent(trials, data)
        _refuse_unknown_scale(trials, data)
    federation = config.federation
    names = [t.subject for t in trials]
    left_out: dict[str, tuple[int, ...]] = {}
    split = tuple(_split(t, config) for t in trials)
    training = list(range(len(trials)))
    if data.split == "leave_subjects_out":
        test = leave_subjects_out(names, data.test_fraction, seed=config.seed)
        rest = [name for name in names if name not in test]
        val = leave_subjects_out(rest, data.val_fraction, seed=config.seed)
        left_out = {"val": tuple(map(names.index, val)), "test": tuple(map(names.index, test))}
        training = [i for i, name in enumerate(names) if name not in {*val, *test}]
        kinds = {**dict.fromkeys(left_out["val"], VAL), **dict.fromkeys(left_out["test"], TEST)}
        split = tuple(np.full(len(t), kinds.get(i, TRAIN), dtype=np.int8) for i, t in enumerate(trials))
    each = federation.subjects_per_client
    clients = federation.clients or -(-len(training) // each)
    if clients > len(training):
        raise FedgeoError(f"federation.clients={clients}: {len(training)} subjects allow at most as many clients")
    members = tuple(tuple(int(s) for s in part) for part in np.array_split(training, clients))
    return EegDataset(config, trials, members, split, left_out)


def _refuse_absent(subjects: Sequence[Trials], data: EegData) -> None:
    """A class without any trial, as a misspelt annotation makes it: the rest would be learned all too easily."""
    held = np.bincount(np.concatenate([t.labels for t in subjects]), minlength=len(subjects[0].classes))
    for name, trials in zip(subjects[0].classes, held, strict=True):
        if not trials:
            annotation = (data.events or {}).get(name, name)
            raise FedgeoError(
                f"data.events: no recording has a trial of class {name} ({annotation}): correct its annotation, or "
                "leave the class out (scripts/check_site.py DIR lists the annotations there are)"
            )


def _refuse_unknown_scale(subjects: Sequence[Trials], data: EegData) -> None:
    names = [t.subject for t in subjects]
    for key in data.scale if isinstance(data.scale, dict) else ():
        if not any(is_subject(key, name) for name in names):
            raise FedgeoError(f"data.scale: subject {key} is not among {', '.join(names)}")


def _split(trials: Trials, config: Config) -> np.ndarray:
    """The subject's own split. FedgeoError, naming it, where it has too few trials."""
    data = config.data
    assert isinstance(data, EegData)
    shares = (1 - data.val_fraction - data.test_fraction, data.val_fraction, data.test_fraction)
    try:
        return split_subject(trials.labels, trials.run, shares, seed=config.seed, grouped=trials.windowed)
    except FedgeoError as error:
        raise FedgeoError(f"subject {trials.subject}: {error}") from error
