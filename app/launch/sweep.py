"""Sweeps: many runs by one command, of which only those are done that are missing.

A run is known by its resolved configuration and the version of the code, whatever its directory is called. What a
sweep finds finished it leaves alone; what failed or broke off it does again; a finished run of another version of the
code is moved aside, into the folder ``outdated``, and done again.
"""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from joblib import cpu_count

from ..common.code import code_hash
from ..common.errors import FedgeoError, describe
from ..common.files import write_atomic
from ..config.combinations import expand
from ..config.compose import dump, load
from ..runs import reader, resume
from ..runs.reader import Run
from ..runs.run_directory import check_new, check_writable
from .job import Job, check, execute, prepare
from .simulation import SimulationSuperLink, end_marked
from .superlink import PrivateSuperLink
from .workers import Listener, Outcome, run_jobs

LONGEST = 180  # characters of a run directory's name
LOCK = ".sweep.lock"


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep: those that were found finished, and the jobs that are left.

    stale: for each job what must make room for it: what an earlier try left, or a run of other code.
    """

    folder: Path
    finished: tuple[Run, ...]
    jobs: tuple[Job, ...]
    stale: dict[Job, tuple[Run, ...]]

    @property
    def outdated(self) -> int:
        """How many finished runs are of another version of the code."""
        return sum(run.completed for found in self.stale.values() for run in found)

    def make_room(self, job: Job) -> None:
        """Remove what an earlier try of ``job`` left, and move a finished run of other code aside."""
        for run in map(reader.read, (run.path for run in self.stale[job])):
            if run.completed:
                target = self.folder / reader.OUTDATED / f"{run.path.name}-{run.identity[:8]}-{run.code[:8]}"
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(exist_ok=True)
                run.path.rename(target)
            else:
                shutil.rmtree(run.path)
        if job.run_dir.is_dir() and not _holds_files(job.run_dir):
            shutil.rmtree(job.run_dir)  # broken off before its first file


def plan_sweep(overrides: Sequence[str], also: Sequence[str] = ()) -> Sweep:
    """All combinations of ``overrides`` and ``also``, against what sweep_dir holds. Raises FedgeoError with one line.

    What comes twice, such as seed=1,1 or an arm that ``also`` repeats, is one run.
    Every configuration is checked; whether it can be run is checked once for those that differ in their seed alone.
    """
    if any(o.startswith("run_dir=") for o in overrides):
        raise FedgeoError("run_dir: a sweep has several; give sweep_dir")
    chosen_all = expand(overrides, also)
    given = load(chosen_all[0][0]).sweep_dir
    folder = Path(given or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-sweep").expanduser().absolute()
    check_writable(folder, "sweep_dir")
    held = reader.find([folder]) if folder.is_dir() else []
    code = code_hash()
    finished, jobs, stale = [], [], {}
    taken = {run.path: run.identity for run in held}
    rounds: dict[str, int] = {}
    planned: set[str] = set()
    for chosen, label in chosen_all:
        job = prepare(chosen, label or "run", folder / _name(label or "run"))
        if job.config.engine == "deployment":
            raise FedgeoError("engine=deployment: a sweep runs on this machine: set engine=inprocess or engine=flower")
        settings = job.config.model_dump(mode="json")
        identity, arm = reader.identity(settings), reader.identity(settings, without=("seed",))
        if identity in planned:
            continue
        planned.add(identity)
        same = [run for run in held if run.identity == identity]
        done = [run for run in same if run.completed and run.code == code]
        if done:
            finished.append(done[0])
            continue
        if taken.get(job.run_dir, identity) != identity:
            job = replace(job, run_dir=job.run_dir.with_name(f"{job.run_dir.name}~{identity[:8]}"))
        taken[job.run_dir] = identity
        if arm not in rounds:
            rounds[arm] = check(job.config)
        job = replace(job, rounds=rounds[arm])
        if not any(run.path == job.run_dir for run in same) and _holds_files(job.run_dir):
            check_new(job.run_dir)
        jobs.append(job)
        stale[job] = tuple(same)
    return Sweep(folder, tuple(finished), tuple(jobs), stale)


def run_sweep(sweep: Sweep, workers: int, listener: Listener) -> list[Outcome]:
    """Do what is missing: in worker processes, or over one SuperLink run by run, as each job's engine says."""
    with locked(sweep.folder) as lock:
        local = [job for job in sweep.jobs if job.config.engine != "flower"]
        flower = [job for job in sweep.jobs if job.config.engine == "flower"]
        outcomes = run_jobs(local, workers, listener, sweep.make_room) if local else []
        for outcome in outcomes:
            _record(outcome)
        return outcomes + run_on_superlink(flower, listener, sweep.make_room, lock.mark)


def _record(outcome: Outcome) -> None:
    """Leave a trace of a run that failed before it could write its own."""
    job, path = outcome.job, outcome.job.run_dir
    if outcome.error is None or (path / "summary.json").exists():
        return
    (path / "figures").mkdir(parents=True, exist_ok=True)
    if not (path / "config.yaml").exists():
        write_atomic(path / "config.yaml", dump(job.config).encode())
    summary = {"status": reader.FAILED, "error": outcome.error, "metric": job.config.metric.name}
    write_atomic(path / "summary.json", json.dumps(summary).encode())


def run_on_superlink(
    jobs: Sequence[Job],
    listener: Listener,
    before: Callable[[Job], None] = lambda job: None,
    started: Callable[[str], None] = lambda mark: None,
) -> list[Outcome]:
    """Run the jobs one after the other over one SuperLink, whose simulation uses all cores for each.

    before(job) is called before each; started(mark) once the SuperLink's mark is known. Raises FedgeoError where the
    jobs want several Ray clusters.
    """
    if not jobs:
        return []
    addresses = {job.config.federation.ray_address for job in jobs}
    if len(addresses) > 1:
        raise FedgeoError("federation.ray_address differs between the runs: a sweep is simulated on one Ray cluster")
    outcomes = []
    listener.note("starting Flower's SuperLink")
    superlink = SimulationSuperLink(addresses.pop())
    started(superlink.mark)
    with superlink:
        for job in jobs:
            before(job)
            outcomes.append(run_here(job, superlink, listener))
    return outcomes


def run_here(job: Job, superlink: PrivateSuperLink | None, listener: Listener) -> Outcome:
    """One run, over ``superlink`` or in this process; an error is an outcome."""
    listener.begin(job)
    try:
        summary = execute(job, superlink, lambda row: listener.round(job, row), lambda line: listener.note(line, job))
        outcome = Outcome(job, summary, None)
    except Exception as error:
        outcome = Outcome(job, None, describe(error))
        _record(outcome)
    listener.end(outcome)
    return outcome


def cores() -> int:
    """The cores that this process may use, by affinity and by a container's quota."""
    return int(cpu_count())


@dataclass(frozen=True)
class Lock:
    """A sweep's lock file, which holds the mark of the Flower processes that belong to it."""

    file: TextIO

    def mark(self, mark: str) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.file.write(json.dumps({"mark": mark}))
        self.file.flush()


@contextmanager
def locked(folder: Path) -> Iterator[Lock]:
    """One sweep at a time in ``folder``. Flower processes of one that was killed there are ended first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedgeoError(f"sweep_dir={folder}: another sweep is at work there; wait for it, or stop it") from None
        file.seek(0)
        if left := re.search(r'"mark": "([0-9a-f]{32})"', file.read()):
            end_marked(left[1])
        yield Lock(file)
        file.truncate(0)


def _name(label: str) -> str:
    """A folder's name for what sets a run apart."""
    name = label.replace(" ", ",").replace("/", "_")
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}~{reader.identity({'label': label})[:8]}"


def _holds_files(path: Path) -> bool:
    """Whether there is more than the folders, the lock and the draft of a run that ends as it begins."""
    if not path.is_dir():
        return path.exists()
    files = (each.relative_to(path) for each in path.rglob("*") if each.is_file())
    return any(file != Path(resume.FOLDER, resume.LOCK) and not file.match(".config.yaml.*") for file in files)
