"""One seed gives one result: whatever the number of nodes, and whichever engine runs it."""

import json
import signal
from pathlib import Path

import pytest

from tests.processes import WAIT, Command, wait_for
from tests.running import rounds, run_in_process

SHORT = ("federation.rounds=3", "training.epochs=1")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run_in_process(folder, *SHORT)
    return folder


@pytest.mark.parametrize("nodes", [1, 3, 10, 12])
def test_the_number_of_nodes_changes_nothing(reference: Path, tmp_path: Path, nodes: int) -> None:
    run_in_process(tmp_path / "run", *SHORT, nodes=nodes)
    assert rounds(tmp_path / "run") == rounds(reference)
    models = [folder / "model-final.safetensors" for folder in (reference, tmp_path / "run")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_another_seed_differs(reference: Path, tmp_path: Path) -> None:
    run_in_process(tmp_path / "run", *SHORT, "seed=2")
    assert rounds(tmp_path / "run") != rounds(reference)


def test_partial_participation_is_repeatable_and_counted(tmp_path: Path) -> None:
    for name, nodes in (("a", 1), ("b", 4)):
        run_in_process(tmp_path / name, *SHORT, "federation.participation=0.3", nodes=nodes)
    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")
    assert [line["clients"] for line in rounds(tmp_path / "a")] == [3, 3, 3]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Command]:
    """Three runs over one SuperLink, the last with a learning rate that makes every client's loss infinite: the sweep's
    folder, what the command said, and the command."""
    folder = tmp_path_factory.mktemp("swept") / "a sweep"
    words = ("-m", *SHORT, "augmentation=ggeur,none", f"sweep_dir={folder}", "--also", "training.lr=1e38")
    command = Command("run.py", folder.parent, *words)
    said, _ = command.communicate()
    assert command.left() == []
    return folder, said, command


@pytest.mark.slow
def test_flower_gives_the_same_rounds_as_in_process(reference: Path, swept: tuple[Path, str, Command]) -> None:
    folder, said, _ = swept
    run = folder / "augmentation=ggeur"
    assert rounds(run) == rounds(reference), said
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"
    assert (run / "model-final.safetensors").read_bytes() == (reference / "model-final.safetensors").read_bytes()
    assert json.loads((folder / "augmentation=none" / "summary.json").read_text())["status"] == "completed"
    assert str(folder / "report.html") in said


@pytest.mark.slow
def test_a_client_that_fails_makes_the_flower_run_fail(swept: tuple[Path, str, Command]) -> None:
    """The exit code and the summary both say so."""
    folder, said, command = swept
    assert command.returncode == 1, said
    (path,) = folder.glob("*1e38*/summary.json")
    summary = json.loads(path.read_text())
    assert summary["status"] == "failed"
    assert "not finite" in summary["error"]
    assert "not finite" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "run"
    command = Command("run.py", tmp_path, "federation.rounds=2000", f"run_dir={folder}")
    lines = folder / "rounds.jsonl"
    wait_for("the first round", lambda: command.poll() is not None or (lines.exists() and lines.read_text()))
    command.send_signal(how)
    try:
        said, _ = command.communicate(timeout=WAIT)
    finally:
        command.kill()  # where it did not end
    assert command.returncode == 130, said
    assert command.left() == []
