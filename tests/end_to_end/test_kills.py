"""kill -9 of real processes, each in its turn: how the run ends, what it keeps, what is left running, how it goes on.

A site that is killed in mid-round is in test_deployment.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.engines.flower import SuperLink
from app.engines.launch import Job, plan, run_in_process
from app.engines.link import MARK, Link
from app.engines.sweep import run_here
from app.engines.workers import Outcome
from tests.running import rounds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a crowded machine takes many times as long
DIGITS = ("federation.rounds=4", "federation.participation=0.6", "training.epochs=1")
RUNS = {"scaffold": ("method=scaffold", *DIGITS)}


class Killer:
    """Listens to a run and, once it has heard of round ``number``, kills processes of its SuperLink."""

    def __init__(self, link: Link, command: str = "", number: int = 0) -> None:
        self.link, self.command, self.number = link, command, number
        self.killed: list[psutil.Process] = []

    def begin(self, job: Job) -> None: ...

    def note(self, text: str, job: Job | None = None) -> None: ...

    def end(self, outcome: Outcome) -> None: ...

    def round(self, job: Job, row: dict[str, Any]) -> None:
        if row["round"] == self.number:
            self.killed = [p for p, line in marked(self.link.mark) if self.command in line]
            for process in self.killed[:1]:
                process.kill()


def marked(mark: str) -> list[tuple[psutil.Process, str]]:
    """The processes of one private SuperLink that are still there, and how they are called."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append((process, " ".join(process.cmdline()[:2])))
        except (psutil.Error, OSError):
            continue
    return found


def run_killed(job: Job, link: Link, command: str, number: int) -> str:
    """The error of a run, one of whose processes is killed after round ``number``. It keeps its rounds and says so."""
    killer = Killer(link, command, number)
    error = run_here(job, link, killer).error
    assert killer.killed and error
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", error)
    assert number <= len(rounds(job.run_dir)) < job.rounds
    return error


def resume(folder: Path, link: Link) -> None:
    assert run_here(plan([f"resume={folder}"]), link, Killer(link)).error is None


def equal(folder: Path, reference: Path) -> None:
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert rounds(folder) == rounds(reference)
    for name in ("model-final.safetensors", "model-best.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name


@pytest.fixture(scope="module")
def simulation() -> Iterator[SuperLink]:
    with SuperLink() as link:
        yield link
    assert marked(link.mark) == []


@pytest.mark.parametrize("method", RUNS)
def test_a_simulation_whose_server_is_killed_goes_on(method: str, simulation: SuperLink, tmp_path: Path) -> None:
    """The process of the server dies: the run fails and keeps its rounds. Resumed in simulation it equals the
    uninterrupted run bit for bit, with what clients kept (SCAFFOLD's controls)."""
    folder = tmp_path / "run"
    error = run_killed(plan(RUNS[method], run_dir=folder), simulation, "flwr-simulation", 2)
    assert "the run ended as finished:failed" in error
    resume(folder, simulation)
    whole = plan(("engine=inprocess", *RUNS[method]), run_dir=tmp_path / "whole")  # which a simulation equals
    run_in_process(whole, lambda row: None)
    equal(folder, tmp_path / "whole")


def test_a_worker_of_the_simulation_that_is_killed_ends_the_run(simulation: SuperLink, tmp_path: Path) -> None:
    """The run fails for its clients' errors, which say so, and does not hang."""
    words = ("method=scaffold", "federation.rounds=100", "training.epochs=1")
    error = run_killed(plan(words, run_dir=tmp_path / "run"), simulation, "ray::ClientAppActor", 2)
    assert "clients failed" in error
