"""Real processes for tests: scripts as commands, what a private SuperLink started, and one who kills in mid-run."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.launch.job import Job
from app.launch.superlink import MARK, PrivateSuperLink
from app.launch.workers import Silent
from tests.conftest import ROOT

WAIT = 300.0  # seconds that a busy machine may take for what takes a few


def marked(mark: str = "") -> list[tuple[psutil.Process, str]]:
    """The processes of a private SuperLink that are still there, of any one without ``mark``; how they are called."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.environ().get(MARK)
            if own is not None and mark in ("", own):
                found.append((process, " ".join(process.cmdline()[:2])))
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


def start(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A script as a command that works in ``folder``."""
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@dataclass(frozen=True)
class Started:
    """What a command had started when it was killed: its processes, their programs, the folders they worked in."""

    processes: tuple[psutil.Process, ...]
    programs: frozenset[str]
    marks: frozenset[str]
    homes: frozenset[Path]

    def running(self) -> list[psutil.Process]:
        """Those of them, and of what they started since, that are still there."""
        here = [p for p in self.processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        return here + [process for mark in self.marks for process, _ in marked(mark)]


def kill(process: "subprocess.Popen[str]") -> Started:
    """kill -9 of a command; what it had started is not touched."""
    children = psutil.Process(process.pid).children(recursive=True)
    programs, marks, homes = set(), set(), set()
    for child in children:
        with contextlib.suppress(psutil.Error, OSError):  # it may just have ended
            programs |= {Path(word).name for word in child.cmdline()[:2]}
            told = child.environ()
            if MARK in told:
                marks.add(told[MARK])
                homes.add(Path(told["FLWR_HOME"]))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return Started(tuple(children), frozenset(programs), frozenset(marks), frozenset(homes))


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
