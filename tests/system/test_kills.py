"""kill -9 of real processes, each in its turn: how the run ends, what it keeps, what is left running, how it goes on.

A site that is killed in mid-round is in test_deployment.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.launch.deployment import Deployment, LocalSite
from app.launch.job import Job, plan, run_in_process
from app.launch.simulation import SimulationSuperLink
from app.launch.superlink import PrivateSuperLink
from app.launch.sweep import run_here
from app.runs import reader
from scripts import run
from tests.processes import Command, Killer, kill, listening, marked, wait_for
from tests.running import rounds
from tests.sites import digit_sites, run_over_sites

pytestmark = pytest.mark.slow
DIGITS = ("federation.rounds=40", "federation.participation=0.6", "training.epochs=1")  # a tenth of a second a round
EEG = ("experiment=eeg_demo", "data.subjects=4", "data.trials_per_class=12", "training.epochs=1")
ENDED = (reader.UNFINISHED, reader.FAILED)  # failed where the server's process was told to end in time to write it
SCAFFOLD = ("method=scaffold", *DIGITS)
COMMANDS = {
    "fedavg": ("method=fedavg", *DIGITS),
    "fedopt": ("method=fedopt", "method.optimiser=adam", *DIGITS),
    "rlavg": ("method=rlavg", "federation.rounds=12", *EEG),
    "in process": ("engine=inprocess", *SCAFFOLD),
}


TASK = """
import sys, ray
ray.init(sys.argv[1])
print("let in:", ray.get(ray.remote(lambda: "a task was run").remote()))
"""


class Visitor(Killer):
    """Sees on which addresses a simulation listens, and tries its Ray without the token; then kills a worker."""

    def __init__(self, link: PrivateSuperLink, folder: Path) -> None:
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
            self.stranger = subprocess.Popen(
                [sys.executable, "-c", TASK, address],
                env={**own, "HOME": str(self.folder), "RAY_NUM_REDIS_GET_RETRIES": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        elif self.stranger.poll() is not None and not self.killed:
            self.said = self.stranger.communicate()[0]
            self.number = row["round"]
            super().round(job, row)


def run_killed(job: Job, killer: Killer, number: int) -> str:
    """The error of a run, one of whose processes is killed after round ``number``. It keeps its rounds and says so."""
    error = run_here(job, killer.link, killer).error
    assert killer.killed and error
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", error)
    assert number <= len(rounds(job.run_dir)) < job.rounds
    return error


def written(folder: Path) -> int:
    """How many rounds a run has written."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def resume(folder: Path, link: PrivateSuperLink) -> None:
    assert run_here(plan([f"resume={folder}"]), link, Killer(link)).error is None


def equal(folder: Path, reference: Path) -> None:
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert rounds(folder) == rounds(reference)
    for name in ("model-final.safetensors", "model-best.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name


def uninterrupted(words: tuple[str, ...], folder: Path) -> Path:
    """The same run in this process, which a simulation equals."""
    run_in_process(plan((*words, "engine=inprocess"), run_dir=folder), lambda row: None)
    return folder


# --- processes of a SuperLink ---


@pytest.fixture(scope="module")
def simulation() -> Iterator[SimulationSuperLink]:
    with SimulationSuperLink() as link:
        yield link
    assert marked(link.mark) == []


def test_a_simulation_whose_server_is_killed_goes_on(simulation: SimulationSuperLink, tmp_path: Path) -> None:
    """The process of the server dies: the run fails and keeps its rounds. Resumed in simulation it equals the
    uninterrupted run bit for bit, with what clients kept (SCAFFOLD's controls)."""
    folder = tmp_path / "run"
    error = run_killed(plan(SCAFFOLD, run_dir=folder), Killer(simulation, "flwr-simulation", 2), 2)
    assert "the run ended as finished:failed" in error
    resume(folder, simulation)
    equal(folder, uninterrupted(SCAFFOLD, tmp_path / "whole"))


def test_a_worker_of_the_simulation_that_is_killed_ends_the_run(
    simulation: SimulationSuperLink, tmp_path: Path
) -> None:
    """The run fails for its clients' errors, which say so, and does not hang. Until then its doors are tried."""
    words = ("method=scaffold", "federation.rounds=2000", "training.epochs=1")
    visitor = Visitor(simulation, tmp_path)
    error = run_killed(plan(words, run_dir=tmp_path / "run"), visitor, 2)
    assert "clients failed" in error
    assert any("ray" in program for programs in visitor.listening.values() for program in programs)
    assert visitor.listening.keys() == {"127.0.0.1"}, visitor.listening
    assert "InvalidAuthToken" in visitor.said and "let in" not in visitor.said, visitor.said


def test_a_deployment_whose_server_is_killed_goes_on_over_the_same_sites(tmp_path: Path) -> None:
    """The process of the server dies while sites train: SuperLink and sites stay, and the run goes on with what the
    sites kept (SCAFFOLD's controls), to the end of an uninterrupted one."""
    words = ("experiment=quickstart", "method=scaffold", "augmentation=none", "training.epochs=1")
    words += ("federation.rounds=2", "engine=deployment")
    folder, sites = tmp_path / "run", digit_sites(tmp_path, 2)
    with Deployment(sites) as deployment:
        error = run_killed(plan(words, run_dir=folder), Killer(deployment, "flwr-serverapp", 1), 1)
        assert "the run ended as finished:failed" in error
        assert deployment.connected() == 2
        resume(folder, deployment)
    assert marked(deployment.mark) == []
    here = [LocalSite(site.name, site.data, tmp_path / "here" / site.name) for site in sites]
    run_over_sites(tmp_path / "whole", here, *words)
    equal(folder, tmp_path / "whole")


# --- the commands themselves ---


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of scripts/run.py that were killed in mid-run, side by side, as most of the time is their start: name -> run
    directory."""
    folders = {name: tmp_path_factory.mktemp("killed") / "run" for name in COMMANDS}
    commands = {
        name: Command("run.py", folders[name].parent, *words, f"run_dir={folders[name]}")
        for name, words in COMMANDS.items()
    }
    left = {}

    def all_killed() -> bool:
        for name in commands.keys() - left.keys():
            if written(folders[name]) >= 2:
                left[name] = kill(commands[name])
            else:
                assert commands[name].poll() is None, commands[name].communicate()[0]
        return len(left) == len(commands)

    wait_for("round 2 of all runs", all_killed)
    for name, started in left.items():
        wait_for(f"the end of what {name} started", lambda started=started: not started.running())
        assert reader.read(folders[name]).status in ENDED
        assert 2 <= written(folders[name]) < plan(COMMANDS[name], run_dir=folders[name].with_name("new")).rounds
    return folders


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_whose_command_is_killed_goes_on(name: str, killed: dict[str, Path], tmp_path: Path) -> None:
    """scripts/run.py dies: all that it started ends, and resume= comes to the uninterrupted run bit for bit.

    One goes on in simulation, the others in process, as a run may go on with another engine.
    """
    folder = killed[name]
    if name == "fedavg":
        command = Command("run.py", folder.parent, f"resume={folder}")
        said, _ = command.communicate()
        assert command.returncode == 0, said
        assert command.left() == []
    else:
        assert run.main([f"resume={folder}", "engine=inprocess"]) == 0
    equal(folder, uninterrupted(COMMANDS[name], tmp_path / "whole"))


def test_a_rehearsal_whose_command_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    """scripts/deploy_local.py dies while its site works: SuperLink, SuperNode and what they started end too."""
    folder = tmp_path / "run"
    process = Command("deploy_local.py", tmp_path, "--nodes", "1", "experiment=quickstart", f"run_dir={folder}")
    log = folder / "log.txt"
    wait_for("the site", lambda: log.exists() and "sites: 0 site-1" in log.read_text())
    started = kill(process)
    assert {"flower-superlink", "flower-supernode", "flwr-serverapp"} <= started.programs
    wait_for("the end of what it started", lambda: not started.running())
    assert not any(home.exists() for home in started.homes)
    assert reader.read(folder).status in ENDED
