"""Running one or many configurations by their overrides, on either engine, with the truth about how they ended."""

import itertools
import json
import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from app import strategies
from app.config import Config, load
from app.data.world import world
from app.engines.flower import SuperLink
from app.engines.inprocess import InProcessGrid
from app.errors import FedgeoError
from app.node import state_folder
from app.results import check_new, default_run_dir
from app.server import run

PATHS = ("data.path", "federation.partition_file", "cache_dir", "encoder.checkpoint")
POLL_SECONDS, STATUS_SECONDS = 0.2, 4.0
OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """One run: its overrides, its checked configuration, where it goes, and what sets it apart in a sweep."""

    overrides: tuple[str, ...]
    config: Config
    run_dir: Path
    label: str

    @property
    def text(self) -> str:
        """The overrides as the app is given them: paths absolute, for it works in another folder."""
        return shlex.join([*self.overrides, f"run_dir={_quote(self.run_dir)}"])


def expand(overrides: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """All combinations of hydra's sweep syntax: (overrides, label) for each; the label names what varies."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise FedgeoError(" ".join(str(error).split())) from None
    choices: list[list[str]] = []
    for override in parsed:
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([str(override.input_line)])
    varied = [i for i, options in enumerate(choices) if len(options) > 1]
    return [(chosen, " ".join(chosen[i] for i in varied)) for chosen in itertools.product(*choices)]


def plan(overrides: Sequence[str], label: str = "", run_dir: Path | None = None) -> Job:
    """Check everything that can be checked before a process starts. Raises FedgeoError with one line."""
    config = load(tuple(overrides))
    absolute = [_absolute(key, config) for key in PATHS]
    words = tuple(o for o in overrides if not o.startswith("run_dir=")) + tuple(a for a in absolute if a)
    where = run_dir or (Path(config.run_dir) if config.run_dir else default_run_dir(config))
    check_new(where.absolute())
    planned = world(config)
    strategies.build(config, len(planned), central=planned.central)
    return Job(words, load(words), where.absolute(), label)


def execute(job: Job, superlink: SuperLink | None, on_round: OnRound) -> dict[str, Any]:
    """Run one job to its end and return its summary. Raises FedgeoError with the reason where it failed."""
    if superlink is None:
        return run_in_process(job, on_round)
    return run_on_flower(job, superlink, on_round)


def run_in_process(job: Job, on_round: OnRound) -> dict[str, Any]:
    """The same ServerApp and ClientApp, in this process."""
    import client_app  # the app's own file at the top level; importing it needs the path that scripts set

    logging.getLogger("flwr").setLevel(logging.WARNING)
    config = load((*job.overrides, f"run_dir={_quote(job.run_dir)}"))
    grid = InProcessGrid(client_app.app, {"experiment": config.experiment, "overrides": job.text})
    try:
        return run(grid, config, job.run_dir, on_round=on_round)
    finally:
        shutil.rmtree(state_folder(config, 1), ignore_errors=True)


def run_on_flower(job: Job, superlink: SuperLink, on_round: OnRound) -> dict[str, Any]:
    """Submit the job, follow its run directory, and trust nothing but its summary and the SuperLink's status."""
    run_id = superlink.submit(job.config.experiment, job.text, nodes(job.config))
    lines = 0
    asked = time.monotonic()
    while True:
        time.sleep(POLL_SECONDS)
        lines = _follow(job.run_dir / "rounds.jsonl", lines, on_round)
        ended = (job.run_dir / "summary.json").exists()
        if ended or time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            status, details = superlink.status(run_id)
            if status.startswith("finished"):
                break
        if not superlink.alive():
            raise FedgeoError(f"the SuperLink died: {superlink.log_tail()}")
    _follow(job.run_dir / "rounds.jsonl", lines, on_round)
    path = job.run_dir / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else None
    if summary is not None and summary["status"] != "completed":
        raise FedgeoError(summary["error"])
    if summary is None or status != "finished:completed":
        raise FedgeoError(f"the run ended as {status}: {details or superlink.log_tail()}")
    return dict(summary)


def nodes(config: Config) -> int:
    """How many simulated nodes host the clients: one a core, or as ``federation.clients_per_node`` says."""
    clients = len(world(config))
    each = config.federation.clients_per_node
    if each == "auto":
        return min(clients, os.cpu_count() or 1)
    return -(-clients // each)


def _follow(path: Path, seen: int, on_round: OnRound) -> int:
    """Report whole lines that were not seen yet; returns how many there are now."""
    if not path.exists():
        return seen
    lines = path.read_text().split("\n")[:-1]
    for line in lines[seen:]:
        on_round(json.loads(line))
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
