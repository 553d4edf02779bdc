"""Running one or many configurations by their overrides, on either engine, with the truth about how they ended."""

import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..client import handlers
from ..client.node import state_folder
from ..common.device import choose_device
from ..common.errors import FedgeoError
from ..common.logs import listening
from ..config.compose import load
from ..config.schema import Config
from ..data.experiment import experiment
from ..grids.in_process import InProcessGrid
from ..grids.placement import together
from ..runs import tracking
from ..runs.resume import Origin, check_resume, lock, rewind
from ..runs.run_directory import check_new, default_run_dir
from ..server import strategy
from ..server.run import run
from ..strategies import compatibility
from .simulation import check_cluster, simulated
from .superlink import PrivateSuperLink

PATHS = ("data.path", "federation.partition_file", "cache_dir", "encoder.checkpoint")
ELSEWHERE = ("run_dir=", "sweep_dir=", "resume=")  # where a run goes: set anew when it is resumed
POLL_SECONDS, STATUS_SECONDS = 0.2, 4.0
OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run: its overrides, its checked configuration, where it goes, and what sets it apart in a sweep.

    figures: whether an in-process run draws them, and its report.
    """

    overrides: tuple[str, ...]
    config: Config
    run_dir: Path
    label: str
    rounds: int
    figures: bool = True

    @property
    def arm(self) -> str:
        """What a table calls the run: its augmentation, or the method where there is none, for EEG."""
        return self.config.method.name if self.config.data.family == "eeg" else self.config.augmentation.kind

    @property
    def text(self) -> str:
        """The overrides as the app is given them: paths absolute, for it works in another folder."""
        return shlex.join([*self.overrides, f"run_dir={_quote(self.run_dir)}"])


def plan(overrides: Sequence[str], label: str = "", run_dir: Path | None = None) -> Job:
    """Check everything that can be checked before a process starts. Raises FedgeoError with one line."""
    job = prepare(overrides, label, run_dir)
    if job.config.resume is None:
        check_new(job.run_dir)
    else:
        check_resume(job.run_dir, job.config)
    return replace(job, rounds=check(job.config))


def prepare(overrides: Sequence[str], label: str = "", run_dir: Path | None = None) -> Job:
    """The job of these overrides: its configuration is checked, not yet whether it can be run."""
    config = load(tuple(overrides))
    if config.resume is not None:
        return _resumed(Path(config.resume).expanduser().absolute(), overrides)
    absolute = [_absolute(key, config) for key in PATHS]
    words = tuple(o for o in overrides if not o.startswith("run_dir=")) + tuple(a for a in absolute if a)
    where = run_dir or (Path(config.run_dir) if config.run_dir else default_run_dir(config))
    return Job(words, load(words), where.absolute(), label, config.federation.rounds)


def _resumed(run_dir: Path, overrides: Sequence[str]) -> Job:
    """The job that goes on with the run in ``run_dir``: its own overrides, then those given with ``resume``."""
    origin = Origin.load(run_dir)
    words = [word for word in (*shlex.split(origin.overrides), *overrides) if not word.startswith(ELSEWHERE)]
    if not any(word.startswith("experiment=") for word in words):
        words.insert(0, f"experiment={origin.experiment}")
    words.append(f"resume={_quote(run_dir)}")
    config = load((*words, f"run_dir={_quote(run_dir)}"))
    return Job(tuple(words), config, run_dir, "", config.federation.rounds)


def check(config: Config) -> int:
    """Refuse what does not go together or cannot be had; returns the number of rounds."""
    compatibility.check(config)
    tracking.check(config)
    if (address := config.federation.ray_address) is not None:
        if config.engine != "flower":
            raise FedgeoError(
                f"federation.ray_address is for engine=flower: engine={config.engine} needs no Ray cluster"
            )
        check_cluster(address)
    if config.engine == "deployment":  # what the sites hold, they say themselves
        return config.federation.rounds
    choose_device(config.device)
    planned = experiment(config)
    if config.data.family == "eeg":  # widths that fit the channels, pools that fit the samples
        planned.model()
    strategy.build(config, planned.dataset)
    return strategy.rounds(config)


def execute(job: Job, superlink: PrivateSuperLink | None, on_round: OnRound, on_note: OnNote) -> dict[str, Any]:
    """Run one job to its end and return its summary. Raises FedgeoError with the reason where it failed.

    on_round gets every line of rounds.jsonl, on_note every line of log.txt. The summary is empty where the run
    directory is on another machine.
    """
    if superlink is None:
        with listening(on_note):
            return run_in_process(job, on_round)
    return run_on_flower(job, superlink, on_round, on_note)


def run_in_process(job: Job, on_round: OnRound) -> dict[str, Any]:
    """The same ServerApp and ClientApp, in this process."""

    logging.getLogger("flwr").setLevel(logging.WARNING)
    config = load((*job.overrides, f"run_dir={_quote(job.run_dir)}"))
    grid = InProcessGrid(handlers.app, {"experiment": config.experiment, "overrides": job.text})
    state = state_folder(config, 1)
    return run(grid, config, job.run_dir, on_round, overrides=job.text, state=state, figures=job.figures)


def run_on_flower(job: Job, superlink: PrivateSuperLink, on_round: OnRound, on_note: OnNote) -> dict[str, Any]:
    """Submit the job, follow its run directory, and trust nothing but its summary and the SuperLink's status."""
    lines, notes = _begun(job)
    options = () if job.config.engine == "deployment" else simulated(nodes(job.config), gpus(job.config))
    run_id = superlink.submit(job.config.experiment, job.text, *options)
    due = time.monotonic() + STATUS_SECONDS
    while True:
        time.sleep(POLL_SECONDS)
        notes = _follow(job.run_dir / "log.txt", notes, on_note)
        lines = _follow(job.run_dir / "rounds.jsonl", lines, lambda line: on_round(json.loads(line)))
        ended = (job.run_dir / "summary.json").exists()
        if ended or time.monotonic() > due:
            began = time.monotonic()
            status, details = superlink.status(run_id)
            if status.startswith("finished"):
                break
            took = time.monotonic() - began  # `flwr` works that long on a core, which the run needs too
            due = began + took + max(STATUS_SECONDS, 4 * took)
        if not superlink.alive():
            raise FedgeoError(f"the SuperLink died: {superlink.log_tail()}")
    _follow(job.run_dir / "rounds.jsonl", lines, lambda line: on_round(json.loads(line)))
    path = job.run_dir / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else None
    if summary is not None and summary["status"] != "completed":
        raise FedgeoError(summary["error"])
    if summary is None and status == "finished:completed" and job.config.engine == "deployment":
        return {}  # the server's machine is another one, and so is its disk
    if summary is None or status != "finished:completed":
        raise FedgeoError(f"the run ended as {status}: {details or superlink.log_tail()}")
    return dict(summary)


def gpus(config: Config) -> int:
    """How many GPUs the run may use: all of this machine's, none with ``device=cpu``."""
    return torch.cuda.device_count() if choose_device(config.device).type == "cuda" else 0


def nodes(config: Config) -> int:
    """How many simulated nodes host the clients: one a core, or as ``federation.clients_per_node`` says.

    Clients that are trained side by side are on one node, whatever the configuration says.
    """
    clients = len(experiment(config).dataset)
    chunk = together(config, clients)
    chunks = -(-clients // chunk)
    each = config.federation.clients_per_node
    if each == "auto":
        return min(chunks, os.cpu_count() or 1)
    return -(-chunks // max(1, each // chunk))


def _begun(job: Job) -> tuple[int, int]:
    """The lines of rounds.jsonl and log.txt that a resumed run has already, its directory being taken back to them."""
    if job.config.resume is None:
        return 0, 0
    with lock(job.run_dir):
        checkpoint = check_resume(job.run_dir, job.config)
        rows = rewind(job.run_dir, 0 if checkpoint is None else checkpoint.round)
    return len(rows), _follow(job.run_dir / "log.txt", 0, lambda line: None)


def _follow(path: Path, seen: int, tell: OnNote) -> int:
    """Tell whole lines that were not seen yet; returns how many there are now."""
    if not path.exists():
        return seen
    lines = path.read_text().split("\n")[:-1]
    for line in lines[seen:]:
        tell(line)
    return len(lines)


def _absolute(key: str, config: Config) -> str | None:
    """``key`` as an override with an absolute path; None where it is not set."""
    group, _, name = key.rpartition(".")
    holder = getattr(config, group) if group else config
    value = getattr(holder, name, None)
    return f"{key}={_quote(Path(value).expanduser().absolute())}" if value else None


def _quote(path: Path) -> str:
    """A path as hydra's grammar wants it: quoted, so that any name is a value."""
    escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
