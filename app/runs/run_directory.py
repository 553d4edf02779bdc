"""The run directory: what a run leaves behind. Scripts and checks rely on its files and keys."""

import json
import logging
import math
import os
import platform
import secrets
import shutil
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..algorithms.registry import local_algorithm
from ..common.code import code_hash
from ..common.errors import FedgeoError
from ..common.files import write_atomic
from ..config.compose import dump
from ..config.schema import Config, SpdNetModel
from ..data.federated_dataset import FederatedDataset
from ..models.base import Weights
from ..models.weights import save_weights
from ..training.evaluation import final_and_best
from . import tracking
from .checkpoint import Checkpoint
from .resume import FOLDER, LAST, Origin, check_resume, completed, lock, rewind

log = logging.getLogger(__name__)

PACKAGES = ("flwr", "ray", "torch", "numpy", "scikit-learn", "hydra-core", "open_clip_torch", "mne", "pyriemann")

EEG_PROCESSING = {"events", "window", "windows", "band", "notch", "resample"}  # how a recording becomes trials
BATCH_NORM = (
    "the running statistics stayed with the clients and are not in this file: before predicting, call calibrate() on "
    "unlabelled z-scored trials of the new recordings, which takes their own statistics"
)


class RunDirectory:
    """Writes the files of one run as they come to be, so that a failed run keeps what it had.

    With ``config.resume`` it goes on with the directory of a run that was broken off, from its last ``checkpoint``.
    overrides: what the run's processes were given. state: where simulated nodes keep what they keep.
    """

    def __init__(self, path: Path, config: Config, overrides: str = "", state: Path | None = None) -> None:
        self.path = path
        self.config = config
        self.rows: list[dict[str, Any]] = []
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.earlier_seconds = self.earlier_cpu_seconds = 0.0  # that the run took before it was broken off
        self.checkpoint: Checkpoint | None = None
        self.stateless = False  # resumed without what its simulated clients kept
        if config.resume is None:
            check_new(path)
            (path / "figures").mkdir(parents=True)
            self.origin = Origin(secrets.token_hex(8), config.experiment, overrides, str(state) if state else None)
        else:
            self.origin = Origin.load(path)
        self._lock = lock(path)
        try:
            if config.resume is not None:
                self._go_on(overrides, state)
            # where a run stands is no part of what it is
            self.write("config.yaml", dump(config.model_copy(update={"resume": None})))
            self.origin.save(path)
            if config.resume is None:
                self.write("versions.json", _json(versions()))
                (path / "rounds.jsonl").touch()
            self.tracker = tracking.tracker(config, path, len(self.rows))
        except BaseException:
            self.close()
            raise

    def _go_on(self, overrides: str, state: Path | None) -> None:
        """Back to the last checkpoint."""
        self.checkpoint = check_resume(self.path, self.config)
        self.stateless = completed(self.path)
        self.rows = rewind(self.path, 0 if self.checkpoint is None else self.checkpoint.round)
        _move_state(self.origin, state)
        if state is not None and not state.exists():
            self.stateless = True
        words = overrides or self.origin.overrides
        self.origin = replace(self.origin, overrides=words, state=str(state) if state else None)
        self._note_versions()

    def close(self) -> None:
        """Let another process have the directory."""
        self._lock.close()

    def _note_versions(self) -> None:
        path, now = self.path / "versions.json", versions()
        before = json.loads(path.read_text()) if path.exists() else {}
        if {key: before.get(key) for key in now} != now:
            log.warning("the run began with other versions of packages or code: see versions.json")
            self.write("versions.json", _json({**before, "resumed with": now}))

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return self.earlier_seconds + time.monotonic() - self.started

    @property
    def cpu_seconds(self) -> float:
        """The processor time that this process has spent so far: the server's, and with engine=inprocess all."""
        return self.earlier_cpu_seconds + time.process_time() - self.cpu_started

    @property
    def checkpoints(self) -> Path:
        """The folder of what a resumed run needs."""
        return self.path / FOLDER

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """The place to go on from, instead of the last one."""
        checkpoint.save(self.checkpoints / LAST)

    def write(self, name: str, text: str) -> None:
        """Write one of the directory's text files."""
        write_atomic(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write one of the directory's JSON files, on one line; numbers that are not finite become null."""
        self.write(name, json.dumps(_plain(value)) + "\n")

    def append(self, row: dict[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        self.rows.append(row)
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(_plain(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.tracker.round(row)

    def save_model(self, which: str, weights: Weights, dataset: FederatedDataset) -> None:
        """model-final or model-best."""
        save_model(self.path / f"model-{which}.safetensors", self.config, weights, dataset)

    def finish(self, status: str, error: str | None, facts: dict[str, Any]) -> dict[str, Any]:
        """Write summary.json and return it. ``facts`` are what only the server knows."""
        config = self.config
        summary: dict[str, Any] = {
            "status": status,
            "error": error,
            "experiment": config.experiment,
            "variant": config.variant,
            "method": config.method.name,
            "augmentation": config.augmentation.kind,
            "simulated": config.data.family == "eeg" and config.data.kind == "simulated",
            "warnings": self.warnings,
            "privacy": None,
            "seed": config.seed,
            "rounds": len(self.rows),
            "metric": config.metric.name,
            "final": None,
            "best": None,
            "best_round": None,
            "val_metric": None,
            "by_domain": {},
            "mean_over_domains": None,
            "std_over_domains": None,
            "std_ddof": 0,
            "f1_macro": None,
            "parameters": None,
            "added_samples": 0,
            "perturbation_rms": 0.0,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "bytes_up": 0,
            "bytes_down": 0,
            "peak_memory_mb": None,
        }
        if self.rows:
            how = "best" if local_algorithm(config).centralised else config.metric.final
            summary |= final_and_best(self.rows, config.metric.name, how, self.val_metric)
            summary |= self._over_domains(how, summary["best_round"])
            summary["f1_macro"] = final_and_best(self.rows, "f1_macro", how, self.val_metric)["final"]
        summary |= facts
        summary = _plain(summary)  # what is returned is what can be read back
        self.write("summary.json", _json(summary))
        self.tracker.end(self.path, summary)
        return summary

    @property
    def warnings(self) -> list[str]:
        """What a person should look at before believing the figures."""
        found = []
        for row in self.rows:
            share = row.get("clamped_fraction", 0.0)
            if share > 0.5 and isinstance(self.config.model, SpdNetModel):
                found.append(
                    f"round {row['round']}: ReEig clamps {100 * share:.0f} % of the eigenvalues, where nothing is "
                    "learned: check that the recordings are in microvolt, or lower "
                    f"model.epsilon={self.config.model.epsilon:g}"
                )
        return found

    @property
    def val_metric(self) -> str:
        """What says which round is best: of the centralised reference the loss, by which it also stops early."""
        return "val_loss" if local_algorithm(self.config).centralised else f"val_{self.config.metric.name}"

    def _over_domains(self, how: str, best_round: int | None) -> dict[str, Any]:
        """The domains' accuracies, averaged over the same rounds as the final figure; where models are each client's
        own, the clients' too.
        """
        window = self.rows[-5 if how == "last5" else -1 :]
        if how == "best" and best_round is not None:
            window = [row for row in self.rows if row["round"] == best_round]
        names = window[-1]["accuracy_by_domain"]
        by_domain = {n: math.fsum(row["accuracy_by_domain"][n] for row in window) / len(window) for n in names}
        mean = math.fsum(by_domain.values()) / len(by_domain)
        variance = math.fsum((value - mean) ** 2 for value in by_domain.values()) / len(by_domain)
        found = {"by_domain": by_domain, "mean_over_domains": mean, "std_over_domains": math.sqrt(variance)}
        if clients := window[-1].get("accuracy_by_client"):
            told = {k: [r["accuracy_by_client"][k] for r in window if k in r["accuracy_by_client"]] for k in clients}
            found["by_client"] = {k: math.fsum(values) / len(values) for k, values in told.items()}
        return found


def _move_state(before: Origin, state: Path | None) -> None:
    """What simulated nodes kept outside of the run directory, as with plain ``flwr run``, goes on in ``state``."""
    if state is not None and not state.exists() and before.state and Path(before.state).is_dir():
        shutil.move(before.state, state)


def save_model(path: Path, config: Config, weights: Weights, dataset: FederatedDataset) -> None:
    """A model as safetensors, with all that is needed to use it on new samples: what it is, and what it reads.

    The metadata's one entry, ``fedgeo``, is JSON: classes, experiment, model, method; facts (what all clients had
    alike: dimension and encoder, or channels, sampling rate, unit and window); encoder for images, data and covariances
    for EEG, as configured.
    """
    described: dict[str, Any] = {
        "classes": list(dataset.classes),
        "experiment": config.experiment,
        "model": config.model.model_dump(),
        "method": config.method.model_dump(),
        "facts": dataset.facts(0),
    }
    if config.data.family == "eeg":
        described |= {
            "encoder": None,
            "data": config.data.model_dump(include=EEG_PROCESSING),
            "covariances": config.covariances.model_dump(),
        }
    elif config.data.name == "features":  # who made them is not known here
        described["encoder"] = {"name": "features", "normalise": config.encoder.normalise}
    else:  # where its weights lie is another machine's affair
        described["encoder"] = config.encoder.model_dump(exclude={"checkpoint"})
    if config.model.kind == "eegnet":
        described["batch_norm"] = BATCH_NORM
    # one entry, for safetensors writes several in no fixed order
    save_weights(path, weights, {"fedgeo": json.dumps(described)})


def check_new(path: Path) -> None:
    """Refuse a run directory that already holds something, for a run never writes over another, or cannot be made."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedgeoError(f"run_dir={path}: it exists already; name another, or remove it")
    check_writable(path, "run_dir")


def check_writable(path: Path, key: str) -> None:
    """Refuse a folder, given as ``key``, that is none, or cannot be made or written."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise FedgeoError(f"{key}={path}: {above} is no folder that can be written; name another")


def default_run_dir(config: Config) -> Path:
    """runs/<time>-<experiment>-<method>-<augmentation>-seed<seed> in the working directory."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{config.experiment}-{config.method.name}-{config.augmentation.kind}-seed{config.seed}"
    path = Path.cwd() / "runs" / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path


def versions() -> dict[str, str]:
    """The packages and the code that a number depends on."""
    found = {"python": platform.python_version(), "code": code_hash()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _plain(value: Any) -> Any:
    """The value as strict JSON: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
