"""The run directory: what a run leaves behind. Scripts and checks rely on its files and keys."""

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.errors import FedgeoError
from ..common.files import append_line, write_atomic
from ..config.compose import dump
from ..config.schema import Config
from ..data.federated_dataset import FederatedDataset
from ..models.base import Weights
from . import tracking
from .checkpoint import Checkpoint
from .resume import FOLDER, LAST, Origin, changed, check_resume, completed, lock, rewind
from .saved_model import save_model
from .summary import strict, summarise
from .versions import versions

log = logging.getLogger(__name__)


class RunDirectory:
    """Writes the files of one run as they come to be, so that a failed run keeps what it had.

    With ``config.resume`` it goes on with the directory of a run that was broken off, from its last ``checkpoint``.
    overrides: what the run's processes were given. state: where simulated nodes keep what they keep.
    """

    def __init__(self, path: Path, config: Config, overrides: str = "", state: Path | None = None) -> None:
        self.path = path
        self.config = config
        self.rows: list[dict[str, Any]] = []
        self.data_warnings: list[str] = []  # what a person should know before believing a figure
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.earlier_seconds = self.earlier_cpu_seconds = 0.0  # that the run took before it was broken off
        self.checkpoint: Checkpoint | None = None
        self.stateless = False  # resumed without the state of its simulated clients
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
                self.write("versions.json", json.dumps(versions(), indent=2) + "\n")
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
            self.write("versions.json", json.dumps({**before, "resumed with": now}, indent=2) + "\n")

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
        self.write(name, json.dumps(strict(value)) + "\n")

    def write_partition(self, text: str) -> None:
        """Who holds what. Raises FedgeoError where the data of a resumed run are not what they were."""
        path = self.path / "partition.json"
        if self.checkpoint is not None and (before := path.read_text()) != text:
            raise FedgeoError(f"resume={self.path}: {changed(before, text)}")
        self.write(path.name, text)

    def warn(self, text: str) -> None:
        """What a person should know of the run's data or outcome: in the log, and among the summary's warnings."""
        log.warning("warning: %s", text)
        self.data_warnings.append(text)

    def append(self, row: dict[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        self.rows.append(row)
        append_line(self.path / "rounds.jsonl", json.dumps(strict(row)))
        self.tracker.round(row)

    def save_model(self, which: str, weights: Weights, dataset: FederatedDataset) -> None:
        """model-final or model-best."""
        save_model(self.path / f"model-{which}.safetensors", self.config, weights, dataset)

    def finish(
        self, status: str, error: str | None, facts: dict[str, Any], warnings: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Write summary.json and return it. facts: what only the server knows. warnings: what it noticed of clients."""
        summary = summarise(self.config, self.rows, status, error) | {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        summary["warnings"] = [*self.data_warnings, *warnings, *summary["warnings"]]
        summary = strict(summary | facts)  # what is returned is what can be read back
        self.write("summary.json", json.dumps(summary, indent=2) + "\n")
        self.tracker.end(self.path, summary)
        return summary


def _move_state(before: Origin, state: Path | None) -> None:
    """The state of simulated nodes outside of the run directory, as with plain ``flwr run``, goes on in ``state``."""
    if state is not None and not state.exists() and before.state and Path(before.state).is_dir():
        shutil.move(before.state, state)


def check_new(path: Path) -> None:
    """Refuse a run directory that already holds something, for a run never writes over another, or cannot be made."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedgeoError(f"run_dir={path}: it exists already: name another")
    check_writable(path, "run_dir")


def check_writable(path: Path, key: str) -> None:
    """Refuse a folder, given as ``key``, that is none, or cannot be made or written."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise FedgeoError(f"{key}={path}: {above} is no folder that can be written; name another")


def default_run_dir(config: Config) -> Path:
    """runs/<time>-<experiment>-<method>-<augmentation>-seed<seed> in the working directory."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    augmentation = config.augmentation.kind.rpartition(":")[2]
    name = f"{stamp}-{config.experiment}-{config.method.name}-{augmentation}-seed{config.seed}"
    path = Path.cwd() / "runs" / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path
