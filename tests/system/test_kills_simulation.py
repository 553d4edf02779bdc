"""kill -9 of a simulation's processes: how the run ends, what it keeps, how it goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.launch.job import plan
from app.launch.simulation import SimulationSuperLink
from tests.killing import SCAFFOLD, equal, resume, run_killed, uninterrupted
from tests.processes import marked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def simulation() -> Iterator[SimulationSuperLink]:
    with SimulationSuperLink() as link:
        yield link
    assert marked(link.mark) == []


def test_a_simulation_whose_server_is_killed_goes_on(simulation: SimulationSuperLink, tmp_path: Path) -> None:
    """The process of the server dies: the run fails and keeps its rounds. Resumed in simulation it equals the
    uninterrupted run bit for bit, with what clients kept (SCAFFOLD's controls)."""
    folder = tmp_path / "run"
    error = run_killed(plan(SCAFFOLD, run_dir=folder), simulation, "flwr-simulation", 2)
    assert "the run ended as finished:failed" in error
    resume(folder, simulation)
    equal(folder, uninterrupted(SCAFFOLD, tmp_path / "whole"))


def test_a_worker_of_the_simulation_that_is_killed_ends_the_run(
    simulation: SimulationSuperLink, tmp_path: Path
) -> None:
    """The run fails for its clients' errors, which say so, and does not hang."""
    words = ("method=scaffold", "federation.rounds=100", "training.epochs=1")
    error = run_killed(plan(words, run_dir=tmp_path / "run"), simulation, "ray::ClientAppActor", 2)
    assert "clients failed" in error
