"""Sweeps: only what is missing is done, several at once, and whatever happens to one leaves the others alone."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from app.common.errors import FedgeoError
from app.launch import sweep as sweeps
from app.launch.job import Job
from app.launch.simulation import MARK
from app.launch.sweep import LOCK, locked, plan_sweep, run_sweep
from app.launch.workers import Outcome
from app.runs.reader import OUTDATED, find
from scripts import report, run
from tests.conftest import ROOT
from tests.made_runs import make_run
from tests.processes import WAIT, wait_for

SHORT = ("engine=inprocess", "federation.rounds=2", "training.epochs=1")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.rounds: list[tuple[str, int]] = []
        self.ended: dict[str, str | None] = {}

    def begin(self, job: Job) -> None:
        self.begun.append(job.label)

    def round(self, job: Job, row: dict) -> None:
        self.rounds.append((job.label, row["round"]))

    def note(self, text: str, job: Job | None = None) -> None:
        pass

    def end(self, outcome: Outcome) -> None:
        self.ended[outcome.job.label] = outcome.error


def plan(folder: Path, *overrides: str) -> sweeps.Sweep:
    return plan_sweep((*overrides, f"sweep_dir={folder}"))


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file was written, and which one it is: a run that is done again has others."""
    written = [path for path in folder.rglob("*") if path.is_file() and path.name not in (LOCK, "report.html")]
    found = {path: path.stat() for path in written}
    return {path.relative_to(folder).as_posix(): (stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


@pytest.mark.slow
def test_runs_at_once_a_worker_that_dies_and_a_run_that_fails_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run's process is killed after its first round, the second diverges; then only those are done again."""
    sweep = plan(tmp_path, *SHORT, "training.lr=0.1,1e38", "seed=1,2")
    assert [job.label for job in sweep.jobs] == [f"training.lr={r} seed={s}" for r in ("0.1", "1e+38") for s in (1, 2)]
    heard = Heard()
    killed: list[int] = []

    def kill_once(job: Job, row: dict) -> None:
        Heard.round(heard, job, row)
        if job.label == "training.lr=0.1 seed=1" and not killed:
            (worker,) = [p for p in psutil.Process().children() if holds(p, job.run_dir)]
            killed.append(worker.pid)
            worker.kill()

    monkeypatch.setattr(heard, "round", kill_once)
    outcomes = run_sweep(sweep, 2, heard)
    assert [outcome.job for outcome in outcomes] == list(sweep.jobs)
    assert "its process died (exit code -9)" in str(heard.ended["training.lr=0.1 seed=1"])
    assert heard.ended["training.lr=0.1 seed=2"] is None
    assert "clients failed" in str(heard.ended["training.lr=1e+38 seed=1"])
    statuses = {run.path.name: run.status for run in find([tmp_path])}
    assert sorted(statuses.values()) == ["completed", "failed", "failed", "failed"]
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())], "workers are left"

    again = plan(tmp_path, *SHORT, "training.lr=0.1,1e38", "seed=1,2")
    assert [run.path.name for run in again.finished] == ["training.lr=0.1,seed=2"]
    one = plan(tmp_path, *SHORT, "training.lr=0.1", "seed=1,2")
    before = files(tmp_path / "training.lr=0.1,seed=2")
    assert [outcome.error for outcome in run_sweep(one, 2, Heard())] == [None]
    assert files(tmp_path / "training.lr=0.1,seed=2") == before
    assert not plan(tmp_path, *SHORT, "training.lr=0.1", "seed=1,2").jobs


def holds(process: psutil.Process, run_dir: Path) -> bool:
    """Whether the process has a file of the run open (its lock, its log)."""
    return any(Path(file.path).is_relative_to(run_dir) for file in process.open_files())


def test_what_is_finished_is_known_by_its_settings_not_by_its_name(tmp_path: Path) -> None:
    make_run(tmp_path / "any name", "engine=inprocess", "seed=2", "augmentation=none")
    sweep = plan(tmp_path, "engine=inprocess", "seed=1,2", "augmentation=none,repeat")
    assert [run.path.name for run in sweep.finished] == ["any name"]
    assert {job.label for job in sweep.jobs} == {
        *("seed=1 augmentation=none", "seed=1 augmentation=repeat", "seed=2 augmentation=repeat")
    }


def test_where_things_are_kept_is_no_setting(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "engine=inprocess", f"cache_dir={tmp_path}", "run_dir=elsewhere", "tracking=tensorboard")
    assert not plan(tmp_path, "engine=inprocess").jobs


def test_what_is_given_twice_is_one_run(tmp_path: Path) -> None:
    """Each once, whether it is left to do or was found finished."""
    make_run(tmp_path / "done", "engine=inprocess", "seed=3", "training.lr=0.1")
    swept = ("engine=inprocess", "training.lr=0.1,1e-1", "seed=1,2,1,3,3", f"sweep_dir={tmp_path}")
    sweep = plan_sweep(swept, ["seed=1 training.lr=0.1"])
    assert [job.run_dir.name for job in sweep.jobs] == ["training.lr=0.1,seed=1", "training.lr=0.1,seed=2"]
    assert [run.path.name for run in sweep.finished] == ["done"]


def test_a_taken_name_is_left_alone(tmp_path: Path) -> None:
    """seed=1 of a sweep with other rounds: the new run gets a name of its own."""
    kept = make_run(tmp_path / "seed=1", "engine=inprocess", "federation.rounds=7", "seed=1")
    sweep = plan(tmp_path, "engine=inprocess", "seed=1,2")
    first, second = (job.run_dir.name for job in sweep.jobs)
    assert first.startswith("seed=1~") and len(first) == 15 and second == "seed=2"
    sweep.make_room(sweep.jobs[0])
    assert (kept / "summary.json").is_file()


def test_what_failed_or_broke_off_makes_room_and_other_code_is_kept_aside(tmp_path: Path) -> None:
    make_run(tmp_path / "seed=1", "engine=inprocess", "seed=1", scores=(), error="disc full")
    make_run(tmp_path / "seed=2", "engine=inprocess", "seed=2")
    (tmp_path / "seed=2" / "summary.json").unlink()
    old = make_run(tmp_path / "seed=3", "engine=inprocess", "seed=3")
    versions = json.loads((old / "versions.json").read_text())
    (old / "versions.json").write_text(json.dumps({**versions, "code": "0123456789abcdef"}))
    (tmp_path / "seed=4" / "figures").mkdir(parents=True)  # killed before its first file
    (tmp_path / "seed=4" / "checkpoint").mkdir()
    (tmp_path / "seed=4" / "checkpoint" / "lock").touch()
    (tmp_path / "seed=4" / ".config.yaml.123").write_text("exper")
    sweep = plan(tmp_path, "engine=inprocess", "seed=1,2,3,4")
    assert len(sweep.jobs) == 4 and sweep.outdated == 1
    for job in sweep.jobs:
        sweep.make_room(job)
        assert not job.run_dir.exists()
    (kept,) = (tmp_path / OUTDATED).iterdir()
    assert kept.name.endswith("-01234567") and (kept / "summary.json").is_file()
    assert find([tmp_path]) == [], "what is outdated is in no report"


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seed=1").mkdir()
    (tmp_path / "seed=1" / "thesis.tex").write_text("mine")
    with pytest.raises(FedgeoError, match="seed=1: it exists already"):
        plan(tmp_path, "engine=inprocess", "seed=1,2")
    assert (tmp_path / "seed=1" / "thesis.tex").read_text() == "mine"


def test_one_sweep_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path):  # noqa: SIM117
        with pytest.raises(FedgeoError, match="another sweep is at work there"), locked(tmp_path):
            pass
    with locked(tmp_path):
        assert (tmp_path / LOCK).is_file()


def test_what_a_killed_sweep_left_running_is_ended(tmp_path: Path) -> None:
    """Flower's processes outlive a sweep that is killed: the next one in the folder ends those with its mark."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    marks = [uuid.uuid4().hex for _ in range(3)]
    mine = subprocess.Popen(sleep, env={**os.environ, MARK: marks[0]})
    other = subprocess.Popen(sleep, env={**os.environ, MARK: marks[1]})
    try:
        (tmp_path / LOCK).write_text(json.dumps({"mark": marks[0]}))
        with locked(tmp_path) as lock:
            assert mine.wait(timeout=WAIT) is not None and other.poll() is None
            lock.mark(marks[2])
            assert marks[2] in (tmp_path / LOCK).read_text()
        assert (tmp_path / LOCK).read_text() == ""
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_faults_are_told_before_anything_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    (tmp_path / "file").touch()
    for words, message in (
        (["method=fedavg,projavg"], "method=projavg"),
        (["engine=inprocess,deployment"], "engine=deployment"),
        (["training.lr=0.1,fast"], "training.lr=fast"),
        (["run_dir=x", "seed=1,2"], "sweep_dir"),
        (["seed=1,2", "--also", "seed='3"], '--also "seed=\'3": No closing quotation'),
    ):
        assert run.main(["-m", *words, f"sweep_dir={folder}"]) == 2
        assert message in capsys.readouterr().err
    assert run.main(["-m", "engine=inprocess", "seed=1,2", f"sweep_dir={tmp_path}/file/s"]) == 2
    assert "file is no folder that can be written; name another" in capsys.readouterr().err
    assert not folder.exists()


def test_a_finished_sweep_is_only_put_together_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        make_run(tmp_path / str(seed), "engine=inprocess", f"seed={seed}", scores=(0.5, 0.5 + 0.1 * seed))
    before = files(tmp_path)
    assert run.main(["-m", "engine=inprocess", "seed=1,2", f"sweep_dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "2 runs are finished already, 0 are left" in said and "57.50 ± 3.54" in said
    assert files(tmp_path) == before and (tmp_path / "report.html").is_file()


def command(folder: Path) -> list[str]:
    words = [*SHORT, "augmentation=none,ggeur", "seed=1,2", f"sweep_dir={folder}"]
    return [sys.executable, str(ROOT / "scripts" / "run.py"), "-m", "--jobs", "2", *words]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_started_again_it_ends_with_the_same_table(tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "killed"
    process = subprocess.Popen(command(folder), cwd=tmp_path)
    wait_for("a run that is done", lambda: process.poll() is not None or list(folder.glob("*/summary.json")))
    assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, how)
    assert process.wait(timeout=WAIT) == (-how if how == signal.SIGKILL else 130)
    _, left = psutil.wait_procs(workers, timeout=WAIT)
    assert left == []
    finished = [run.path for run in find([folder]) if run.completed]
    before = {path: files(path) for path in finished}
    assert 0 < len(finished) < 4

    done = subprocess.run(command(folder), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(finished)} runs are finished already, {4 - len(finished)} are left" in done.stdout
    assert {path: files(path) for path in finished} == before
    assert [run.status for run in find([folder])] == ["completed"] * 4

    whole = tmp_path / "whole"
    subprocess.run(command(whole), cwd=tmp_path, capture_output=True, check=True)
    for table in ("results", "pairs"):
        assert report.render([folder], "csv", table, None) == report.render([whole], "csv", table, None)
