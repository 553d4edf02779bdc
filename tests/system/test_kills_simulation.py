"""kill -9 of a simulation's processes: how the run ends, what it keeps, how it goes on. And who is let in before."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.launch.job import Job, plan
from app.launch.simulation import SimulationSuperLink
from tests.killing import SCAFFOLD, equal, resume, run_killed, uninterrupted
from tests.processes import Killer, listening, marked

pytestmark = pytest.mark.slow


TASK = """
import sys, ray
ray.init(sys.argv[1])
print("let in:", ray.get(ray.remote(lambda: "a task was run").remote()))
"""


class Visitor(Killer):
    """Sees on which addresses a simulation listens, and tries its Ray without the token; then kills a worker."""

    def __init__(self, link: SimulationSuperLink, folder: Path) -> None:
        super().__init__(link, "ray::ClientAppActor")
        self.folder = folder
        self.listening: dict[str, set[str]] = {}
        self.stranger: subprocess.Popen[str] | None = None
        self.said = ""

    def round(self, job: Job, row: dict[str, Any]) -> None:
        if self.stranger is None:
            self.listening = listening(self.link.mark)
            words = [word for process, _ in marked(self.link.mark) for word in process.cmdline()]
            (address,) = {word.partition("=")[2] for word in words if word.startswith("--gcs-address=")}
            own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            # as is, but that loopback stays loopback, and that it gives up at once
            own |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "1"}
            self.stranger = subprocess.Popen(
                [sys.executable, "-c", TASK, address],
                env={**own, "HOME": str(self.folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        elif self.stranger.poll() is not None and not self.killed:
            self.said = self.stranger.communicate()[0]
            self.number = row["round"]
            super().round(job, row)


@pytest.fixture(scope="module")
def simulation() -> Iterator[SimulationSuperLink]:
    with SimulationSuperLink() as link:
        yield link
    assert marked(link.mark) == []


def test_a_simulation_whose_server_is_killed_goes_on(simulation: SimulationSuperLink, tmp_path: Path) -> None:
    """The process of the server dies: the run fails and keeps its rounds. Resumed in simulation it equals the
    uninterrupted run bit for bit, with what clients kept (SCAFFOLD's controls)."""
    words = (*SCAFFOLD, "federation.rounds=160")  # a busy machine hears of a round seconds later
    folder = tmp_path / "run"
    error = run_killed(plan(words, run_dir=folder), Killer(simulation, "flwr-simulation", 2))
    assert "the run ended as finished:failed" in error
    resume(folder, simulation)
    equal(folder, uninterrupted(words, tmp_path / "whole"))


def test_a_worker_of_the_simulation_that_is_killed_ends_the_run(
    simulation: SimulationSuperLink, tmp_path: Path
) -> None:
    """The run fails for its clients' errors, which say so, and does not hang. Until then its doors are tried."""
    words = ("method=scaffold", "federation.rounds=2000", "training.epochs=1")
    visitor = Visitor(simulation, tmp_path)
    error = run_killed(plan(words, run_dir=tmp_path / "run"), visitor)
    assert "clients failed" in error
    assert any("ray" in program for programs in visitor.listening.values() for program in programs)
    assert visitor.listening.keys() == {"127.0.0.1"}, visitor.listening
    assert "InvalidAuthToken" in visitor.said and "let in" not in visitor.said, visitor.said
