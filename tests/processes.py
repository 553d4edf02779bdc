"""Real processes for tests: scripts as commands, what they or a private SuperLink started, one who kills in mid-run.

No test counts processes that are not its own: what a command starts inherits a tag of that command, and what a
SuperLink starts carries its mark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.launch.job import Job
from app.launch.superlink import MARK, PrivateSuperLink
from app.launch.workers import Silent
from tests.conftest import ROOT

WAIT = 300.0  # seconds that a busy machine may take for what takes a few
TAG = "FEDGEO_TEST_COMMAND"


def carrying(name: str, value: str) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Every process with this value of an environment variable, and its whole environment."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get(name) == value:
            yield process, environment


def marked(mark: str) -> list[tuple[psutil.Process, str]]:
    """The processes of the private SuperLink of this mark that are still there; the first two words of each command."""
    found = []
    for process, _ in carrying(MARK, mark):
        with contextlib.suppress(psutil.Error, OSError):  # it may just have ended
            found.append((process, " ".join(process.cmdline()[:2])))
    return found


def listening(mark: str) -> dict[str, set[str]]:
    """The addresses on which processes of this mark listen, and the programs behind each."""
    found: dict[str, set[str]] = {}
    for process, program in marked(mark):
        with contextlib.suppress(psutil.Error, OSError):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found.setdefault(one.laddr.ip.removeprefix("::ffff:"), set()).add(program)
    return found


class Command(subprocess.Popen[str]):
    """A script as a command that works in ``folder``, its standard output and errors in one pipe."""

    def __init__(self, script: str, folder: Path, *arguments: str) -> None:
        self.tag = uuid.uuid4().hex
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        try:
            super().__init__(
                [sys.executable, str(ROOT / "scripts" / script), *arguments],
                cwd=folder,
                env={**os.environ, TAG: self.tag},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def left(self) -> list[psutil.Process]:
        """What its private SuperLinks started and is still there."""
        return [process for process, environment in carrying(TAG, self.tag) if MARK in environment]


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Started:
    """What a command had started when it was killed: its programs, the folders of its SuperLinks, its tag."""

    programs: frozenset[str]
    homes: frozenset[Path]
    tag: str

    def running(self) -> list[psutil.Process]:
        """Those of them, and of what they started since, that are still there."""
        return [process for process, _ in carrying(TAG, self.tag)]


def kill(command: Command) -> Started:
    """kill -9 of a command; what it had started is not touched."""
    programs, homes = set(), set()
    for process, environment in carrying(TAG, command.tag):
        with contextlib.suppress(psutil.Error, OSError):  # it may just have ended
            programs |= {Path(word).name for word in process.cmdline()[:2]}
            if MARK in environment:
                homes.add(Path(environment["FLWR_HOME"]))
    command.kill()
    command.communicate()
    assert command.returncode == -signal.SIGKILL
    return Started(frozenset(programs), frozenset(homes), command.tag)


class Killer(Silent):
    """Listens to a run and, once it has heard of round ``number``, kills processes of its SimulationSuperLink."""

    def __init__(self, link: PrivateSuperLink, command: str = "", number: int = 0) -> None:
        self.link, self.command, self.number = link, command, number
        self.killed: list[psutil.Process] = []

    def round(self, job: Job, row: dict[str, Any]) -> None:
        if row["round"] == self.number:
            self.killed = [p for p, line in marked(self.link.mark) if self.command in line]
            for process in self.killed[:1]:
                process.kill()
