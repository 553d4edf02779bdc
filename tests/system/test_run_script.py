"""The command line: what is refused before anything starts, what sweeps mean, what help says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.config.combinations import expand
from app.launch.job import plan
from scripts import deploy_local, run
from tests.conftest import ROOT

REFUSED = [
    ("training.lrr=1", "training.lrr: no such key"),
    ("training.lr=fast", "training.lr=fast: must be a valid number"),
    ("training.lr=-1", "training.lr=-1: must be greater than 0"),
    ("augmentation.target=0", "augmentation.target=0: must be greater than or equal to 1"),
    ("federation.clients=5000", "federation.clients: 5000 clients share"),
    ("method=fedsomething", "method=fedsomething: must be one of"),
    ("method.mu=1", "method.mu"),
    ("method.target=nowhere:Nothing", "method.target=nowhere:Nothing"),
    ("just words", "just words"),
    ("lr=1", "lr: no such key; did you mean training.lr?"),
    ("metod=fedprox", "metod: no such key; did you mean method"),
    ("hydra.sweep.dir=elsewhere", "hydra.sweep.dir: hydra's own settings have no effect here"),
    ("quickstart", "quickstart: not KEY=VALUE; did you mean experiment=quickstart?"),
]


@pytest.mark.parametrize(("override", "message"), REFUSED)
def test_a_fault_is_refused_in_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert run.main(["engine=inprocess", f"run_dir={tmp_path / 'run'}", override]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert said.out == "" and "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").write_text("mine")
    assert run.main(["engine=inprocess", f"run_dir={tmp_path}"]) == 2
    assert f"run_dir={tmp_path}: it exists already" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert run.main(["engine=inprocess", f"run_dir={tmp_path / 'file' / 'run'}"]) == 2
    assert f"{tmp_path / 'file'} is no folder that can be written" in capsys.readouterr().err
    words = ["-m", "engine=inprocess", "seed=1,2", f"sweep_dir={tmp_path / 'file' / 'sweep'}"]
    assert run.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: sweep_dir=") and said.count("\n") == 1


def test_an_end_during_preparation_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (PermissionError(13, "Permission denied", "data.npz"), 2)):

        def prepare(options: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(run, "prepare", prepare)
        assert run.main([]) == code
        assert capsys.readouterr().err.count("\n") == 1


def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run.main(["engine=inprocess", "device=cuda", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "device=cuda, but torch finds no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_a_sweep_without_workers_is_refused(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["-m", f"--jobs={jobs}", "engine=inprocess", "seed=1,2"])
    assert ended.value.code == 2
    assert f"{jobs}: must be a whole number of at least 1" in capsys.readouterr().err


def test_a_word_in_a_sweep_is_told_as_in_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["-m", "quickstart", "seed=1,2"]) == 2
    assert "quickstart: not KEY=VALUE; did you mean experiment=quickstart?" in capsys.readouterr().err


@pytest.mark.parametrize("script", [*sorted(path.name for path in (ROOT / "scripts").glob("[!_e]*.py")), "embed.py"])
def test_a_python_without_the_packages_is_told_of_make(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(ROOT / "scripts" / script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "run make once, then .venv/bin/python" in done.stderr and done.stderr.count("\n") == 1
    assert os.access(ROOT / "scripts" / script, os.X_OK)


def test_a_rehearsal_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy_local.main([f"resume={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: resume: a rehearsal is begun anew") and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nan_in_features_is_refused_by_domain_and_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.ones((60, 4), np.float32)
    x[17, 2] = np.nan
    np.savez(tmp_path / "bad.npz", photo_X=x, photo_y=np.arange(60) % 3)
    words = ["engine=inprocess", "data=features", f"data.path={tmp_path / 'bad.npz'}", f"run_dir={tmp_path / 'run'}"]
    assert run.main(words) != 0
    said = capsys.readouterr()
    assert "photo" in said.err + said.out and "17" in said.err + said.out


def test_a_run_ends_with_zero_and_names_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "it's a run"
    assert run.main(["engine=inprocess", "federation.rounds=1", f'run_dir="{folder}"']) == 0
    said = capsys.readouterr().out
    assert str(folder / "report.html") in said and "accuracy" in said
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert not (folder / "state").exists()


def test_a_failed_run_of_a_sweep_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "engine=inprocess", "federation.rounds=1", "training.lr=1e38,0.1", f"sweep_dir={tmp_path}"]
    assert run.main(words) == 1
    statuses = {p.parent.name: json.loads(p.read_text())["status"] for p in tmp_path.glob("*/summary.json")}
    assert statuses == {"training.lr=1e+38": "failed", "training.lr=0.1": "completed"}
    assert "10 of 10 clients failed" in capsys.readouterr().out
    assert "failed" in (tmp_path / "report.html").read_text()


def test_sweeps_are_all_combinations_in_order() -> None:
    labels = [label for _, label in expand(["seed=1,2", "method=fedavg,moon", "federation.rounds=3"])]
    assert labels == [f"seed={s} method={m}" for s in (1, 2) for m in ("fedavg", "moon")]
    assert [label for _, label in expand(["seed=range(1,4)"])] == ["seed=1", "seed=2", "seed=3"]


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "f.npz", a_X=np.random.default_rng(0).normal(size=(99, 4)), a_y=np.arange(99) % 3)
    monkeypatch.chdir(tmp_path)
    job = plan(["data=features", "data.path=f.npz", "federation.clients=2"], run_dir=Path("r"))
    assert str(tmp_path / "f.npz") in job.text and str(tmp_path / "r") in job.text


def test_a_sweep_has_no_run_dir() -> None:
    with pytest.raises(FedgeoError, match="sweep_dir"):
        run.many(["run_dir=x", "seed=1,2"], [], 1)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("examples:", "engine=inprocess", "method=", "scaffold", "experiment=", "quickstart"):
        assert word in said


QUICK = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print(end.code)
print(*sorted({"torch", "flwr", "scipy.stats", "matplotlib"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(((script, "--help"), 0) for script in ("run", "compare", "report", "predict", "embed", "check_site")),
        (("deploy_local", "--help"), 0),
        (("run", "--cfg", "job"), 0),
        (("run", "training.lrr=1"), 2),
        (("run", "-m", "seed=1,2", "method=fedsomething"), 2),
        (("deploy_local", "training.lrr=1"), 2),
        (("embed", "data=nothing"), 2),
    ],
)
def test_help_and_wrong_words_do_not_wait_for_what_trains(words: tuple[str, ...], code: int) -> None:
    script, *more = words
    told = subprocess.run(
        [sys.executable, "-c", QUICK, f"scripts/{script}.py", *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    *_, ended, imported = told.stdout.split("\n")[:-1]
    assert (ended, imported) == (str(code), ""), told.stderr


def test_a_key_of_another_method_is_told_by_the_chosen_one_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["method=fedprox", "method.muu=1"]) == 2
    assert "method.muu: no such key; did you mean method.mu or" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--config"], ["--cfg", "job"]])
def test_the_resolved_configuration_can_be_printed_by_two_names(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*words, "training.lr=0.25"]) == 0
    assert "lr: 0.25" in capsys.readouterr().out


def test_the_resolved_configuration_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--config", "seed=7"]) == 0
    assert "seed: 7" in capsys.readouterr().out


def test_a_reader_of_the_configuration_may_have_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, str(ROOT / "scripts" / "run.py"), "--config"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
