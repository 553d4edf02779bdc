"""kill -9 of scripts/run.py: all that it started ends, and the run goes on to the same bytes."""

from pathlib import Path

import pytest

from app.launch.job import plan
from app.runs import reader
from scripts import run
from tests.killing import DIGITS, ENDED, SCAFFOLD, equal, uninterrupted
from tests.processes import Command, kill, wait_for

pytestmark = pytest.mark.slow
EEG = ("experiment=eeg_demo", "data.subjects=4", "data.trials_per_class=12", "training.epochs=1")
COMMANDS = {
    "fedavg": ("method=fedavg", *DIGITS),
    "fedopt": ("method=fedopt", "method.optimiser=adam", *DIGITS),
    "rlavg": ("method=rlavg", "federation.rounds=12", *EEG),
    "in process": ("engine=inprocess", *SCAFFOLD),
}


def written(folder: Path) -> int:
    """How many rounds a run has written."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


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
