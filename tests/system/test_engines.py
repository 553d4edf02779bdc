"""One seed gives one result: whatever the number of nodes, and whichever engine runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app.launch.simulation import MARK
from tests.conftest import ROOT
from tests.running import rounds, run_in_process

STARTED = time.time()
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


def command(*overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / "run.py"), *overrides]


def left_over() -> list[int]:
    """Processes of a private SuperLink that are still there, but for those of other runs on the machine."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ() and process.create_time() >= STARTED:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
def test_flower_gives_the_same_rounds_as_in_process(reference: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command("-m", *SHORT, "augmentation=ggeur,none", f"sweep_dir={tmp_path / 'a sweep'}"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "a sweep" / "augmentation=ggeur"
    assert rounds(folder) == rounds(reference)
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert (folder / "model-final.safetensors").read_bytes() == (reference / "model-final.safetensors").read_bytes()
    assert str(tmp_path / "a sweep" / "report.html") in done.stdout
    assert left_over() == []


@pytest.mark.slow
def test_a_client_that_fails_makes_the_flower_run_fail(tmp_path: Path) -> None:
    """The learning rate makes every client's loss infinite: the exit code and the summary both say so."""
    folder = tmp_path / "run"
    done = subprocess.run(
        command("training.lr=1e38", "federation.rounds=2", f"run_dir={folder}"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "not finite" in summary["error"]
    assert "not finite" in done.stdout
    assert left_over() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(command("federation.rounds=2000", f"run_dir={folder}"), cwd=tmp_path)
    end = time.monotonic() + 120
    while not (folder / "rounds.jsonl").exists() or not (folder / "rounds.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < end, "the run did not reach its first round"
        time.sleep(0.2)
    os.kill(process.pid, how)
    assert process.wait(timeout=60) == 130
    assert left_over() == []
