"""Runs in worker processes of this machine: each worker does one run after another, with one thread.

A worker that dies (out of memory, a crash in a library) costs the run that it had, and another takes its place. When
this process goes, killed or not, its workers go too.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ..common.errors import describe
from ..common.logs import listening
from .job import Job, run_in_process

ROUND, NOTE, DONE, FAILED = "round", "note", "done", "failed"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with its summary, or with an error."""

    job: Job
    summary: dict[str, Any] | None
    error: str | None


class Listener(Protocol):
    """Whoever wants to know what goes on; each call names the run."""

    def begin(self, job: Job) -> None: ...

    def round(self, job: Job, row: dict[str, Any]) -> None: ...

    def note(self, text: str, job: Job | None = None) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class Silent:
    """A listener that does nothing, for those that want to know some of it."""

    def begin(self, job: Job) -> None: ...

    def round(self, job: Job, row: dict[str, Any]) -> None: ...

    def note(self, text: str, job: Job | None = None) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class Worker:
    """A fresh process (a fork of one that has run torch may hang) and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        self.pipe.send(job)

    def end(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def run_jobs(
    jobs: Sequence[Job], workers: int, listener: Listener, before: Callable[[Job], None] = lambda job: None
) -> list[Outcome]:
    """Run all jobs in at most ``workers`` processes; one that fails does not stop the others.

    before(job) is called in this process right before the job is given to a worker. Outcomes come in the order of
    the jobs.
    """
    waiting = deque(jobs)
    team: list[Worker] = []
    outcomes: dict[Job, Outcome] = {}
    try:
        while len(outcomes) < len(jobs):
            while waiting and (idle := _idle(team, workers)) is not None:
                job = waiting.popleft()
                before(job)
                listener.begin(job)
                idle.give(job)
            busy = {worker.pipe: worker for worker in team if worker.job is not None}
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                assert worker.job is not None
                outcome = _hear(worker, worker.job, listener)
                if outcome is not None:
                    outcomes[worker.job] = outcome
                    worker.job = None
                    listener.end(outcome)
                if not worker.process.is_alive():
                    team.remove(worker)
                    worker.end()
        return [outcomes[job] for job in jobs]
    finally:
        for worker in team:
            worker.end()


def _idle(team: list[Worker], workers: int) -> Worker | None:
    """A worker without a job, a new one if there may be one more; None where all are busy."""
    for worker in team:
        if worker.job is None:
            return worker
    if len(team) == workers:
        return None
    team.append(Worker())
    return team[-1]


def _hear(worker: Worker, job: Job, listener: Listener) -> Outcome | None:
    """Take one word of a worker; returns the outcome where the run has ended."""
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        return Outcome(job, None, f"its process died (exit code {worker.process.exitcode}): out of memory?")
    if kind == DONE:
        return Outcome(job, value, None)
    if kind == FAILED:
        return Outcome(job, None, value)
    if kind == ROUND:
        listener.round(job, value)
    else:
        listener.note(value, job)
    return None


def _serve(pipe: Connection) -> None:
    """What a worker does: jobs as they come, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_go_with_parent, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            with listening(lambda line: pipe.send((NOTE, line))):
                summary = run_in_process(job, lambda row: pipe.send((ROUND, row)))
        except Exception as error:
            pipe.send((FAILED, describe(error)))
        else:
            pipe.send((DONE, summary))


def _go_with_parent() -> None:
    """End this process as soon as the one that started it is gone, whatever a run is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
