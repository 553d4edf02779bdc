"""The comparison: tuned on the validation of other seeds, nothing repeated, one table."""

import csv
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.common.errors import FedgeoError
from app.tools import compare_table as table
from app.tools.compare import Arm, Grid, Row, Task, arms, choose, compare, finished, run_all, validation
from app.tools.compare_table import markdown
from app.tools.tuning import Choice
from scripts import compare as script
from tests.processes import Command, wait_for

SHARED = ("federation.rounds=2", "training.epochs=1")
GRID = Grid((0.05, 0.5), 2)
SLOW, FAST, ABSURD = (Choice((("training.lr", rate),), ("training.lr",)) for rate in (0.05, 0.5, 1e38))


def few(*variations: str) -> list[Arm]:
    return arms({"quickstart": ("experiment=quickstart",)}, [f"fedavg {each}" for each in variations], SHARED)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    folder = tmp_path_factory.mktemp("comparison")
    return folder, compare(folder, few("none", "repeat"), GRID, seeds=(11, 12), tuning=(1,), note=lambda _: None)


def summary(folder: Path, task: Task) -> dict:
    return json.loads((folder / task.name / "summary.json").read_text())


def test_rows_are_the_runs_at_the_setting_with_the_best_validation(done: tuple[Path, list[Row]]) -> None:
    folder, rows = done
    assert [row.arm.variation for row in rows] == ["none", "repeat"]
    for row in rows:
        scores = {c: validation(folder / Task(row.arm, c, 1).name, row.arm) for c in (SLOW, FAST)}
        assert row.choice == max(scores, key=lambda choice: scores[choice])
        assert row.tried == 2
        found = [summary(folder, Task(row.arm, row.choice, seed)) for seed in (11, 12)]
        assert row.scores == tuple(s["final"] for s in found)
        assert row.mean == pytest.approx(np.mean(row.scores))
        assert row.up == np.mean([s["bytes_up"] for s in found])
        assert row.seconds == pytest.approx(np.mean([s["cpu_seconds"] for s in found]))


def test_validation_is_the_mean_of_the_last_rounds(done: tuple[Path, list[Row]]) -> None:
    folder, rows = done
    run_dir = folder / Task(rows[0].arm, rows[0].choice, 1).name
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    found = validation(run_dir, rows[0].arm)
    assert found == pytest.approx(sum(line["val_accuracy"] for line in lines) / 2)
    assert found != pytest.approx(sum(line["accuracy"] for line in lines) / 2)
    (pooled,) = arms({"quickstart": ("experiment=quickstart",)}, ["centralised none"], SHARED)
    best = json.loads((run_dir / "summary.json").read_text())["best_round"]
    assert validation(run_dir, pooled) == lines[best - 1]["val_accuracy"]


def test_nothing_is_run_twice(done: tuple[Path, list[Row]]) -> None:
    folder, rows = done
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert len(before) == 2 * (2 + 2)  # both rates at the tuning seed, and the best one at the table's
    notes: list[str] = []
    again = compare(folder, few("none", "repeat"), GRID, (11, 12), (1,), note=notes.append)
    assert again == rows
    assert all("at an end of its grid" in each for each in notes)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


def test_a_broken_run_is_done_again_and_other_settings_are_refused(
    done: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    folder, rows = done
    task = Task(rows[0].arm, rows[0].choice, 1)
    assert finished(folder, task)
    other = arms({"quickstart": ("experiment=quickstart",)}, ["fedavg none"], ("federation.rounds=3",))[0]
    with pytest.raises(FedgeoError, match="other settings"):
        finished(folder, Task(other, rows[0].choice, 1))
    (tmp_path / task.name).mkdir(parents=True)
    (tmp_path / task.name / "rounds.jsonl").write_text("")
    assert not finished(tmp_path, task)
    assert not (tmp_path / task.name).exists()


def test_what_is_given_twice_counts_once(done: tuple[Path, list[Row]], tmp_path: Path) -> None:
    folder, rows = done
    assert compare(folder, few("none", "repeat", "none"), GRID, (11, 12, 11), (1, 1), note=lambda _: None) == rows
    (arm,) = few("none")
    notes: list[str] = []
    assert run_all(tmp_path, [Task(arm, FAST, 1), Task(arm, FAST, 1)], 1, notes.append) == {}
    assert len(notes) == 1


@pytest.mark.parametrize("damage", ["summary.json", "config.yaml"])
def test_a_run_whose_files_are_damaged_is_done_again(done: tuple[Path, list[Row]], tmp_path: Path, damage: str) -> None:
    folder, rows = done
    task = Task(rows[0].arm, rows[0].choice, 1)
    shutil.copytree(folder / task.name, tmp_path / task.name)
    assert finished(tmp_path, task)
    if damage == "summary.json":
        (tmp_path / task.name / damage).write_text('{"status": "comp')
    else:
        (tmp_path / task.name / damage).unlink()
    assert not finished(tmp_path, task)
    assert not (tmp_path / task.name).exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_setting_that_diverges_is_out_and_all_of_them_are_an_error(tmp_path: Path, jobs: int) -> None:
    (arm,) = few("none")
    tasks = [Task(arm, ABSURD, 1), Task(arm, FAST, 1)]
    faults = run_all(tmp_path, tasks, jobs, note=lambda _: None)
    assert [task.choice for task in faults] == [ABSURD]
    assert choose(tmp_path, arm, (FAST, ABSURD), (1,), faults) == FAST
    with pytest.raises(FedgeoError, match="quickstart, fedavg, none: failed at every setting: "):
        choose(tmp_path, arm, (ABSURD,), (1,), faults)
    notes: list[str] = []
    assert run_all(tmp_path, tasks, jobs, notes.append) == faults  # it would diverge again
    assert notes == []


def test_a_variation_is_an_augmentation_with_overrides_after_it() -> None:
    arm = few("none steps=equal")[0]
    assert arm.overrides[-2:] == ("augmentation=none", "steps=equal")
    assert Task(arm, FAST, 3).name == "quickstart/fedavg-none_steps=equal-lr0.5-seed3"


def test_the_table_says_mean_spread_seconds_and_bytes(done: tuple[Path, list[Row]]) -> None:
    _, rows = done
    rows = [replace(rows[0], scores=(0.5, 0.6)), replace(rows[1], scores=(0.55, 0.66))]
    text = markdown(rows)
    lines = [line for line in text.splitlines() if line.startswith("| fedavg")]
    assert text.startswith("### quickstart\n")
    assert len(lines) == 2
    assert f"| {100 * rows[0].mean:.1f} ± {100 * np.std(rows[0].scores, ddof=1):.1f} |" in lines[0]
    assert f"| {rows[0].seconds:.1f} | {rows[0].up / 1e6:.2f} | {rows[0].down / 1e6:.2f} |" in lines[0]
    assert "| 50.0 |" in markdown([replace(rows[0], scores=(0.5,))])


def test_a_row_stands_beside_its_best_control_paired_by_seed(done: tuple[Path, list[Row]]) -> None:
    none, repeat = (replace(row, scores=scores) for row, scores in zip(done[1], [(0.4, 0.5), (0.5, 0.7)], strict=True))
    quickstart = {"quickstart": ("experiment=quickstart",)}
    ggeur, scaffold, lda = (
        replace(none, arm=arm, scores=(0.6, 0.9))
        for arm in arms(quickstart, ["fedavg ggeur", "scaffold none", "lda none"], SHARED)
    )
    rows = [none, repeat, ggeur, scaffold, lda]
    assert table.control(ggeur, rows) is repeat  # the better one of its own method
    assert table.control(none, rows) is repeat
    assert table.control(repeat, rows) is None
    (started,) = arms(quickstart, ["fedavg repeat model.init=lda"], SHARED)
    assert not started.control  # it begins with what LDA has from everybody's statistics
    assert table.control(scaffold, rows) is None  # its method's only one
    assert table.control(lda, rows) is scaffold  # of all methods, as LDA trains nothing and is no control
    # differences 10 and 20 points: mean 15, t(1 degree, 0.975) = 12.706 times the standard error, 5
    assert table.difference(ggeur, repeat) == "+15.0 ± 63.5 (fedavg repeat)"


def test_what_the_arm_says_itself_is_not_tuned(tmp_path: Path) -> None:
    (lda,) = arms({"quickstart": ("experiment=quickstart",)}, ["lda none method.shrinkage=0.1"], SHARED)
    rows = compare(tmp_path, [lda], GRID, seeds=(1,), tuning=(2,), note=lambda _: None)
    names = [path.parent.name for path in tmp_path.rglob("summary.json")]
    assert names == ["lda-none_method.shrinkage=0.1-untuned-seed1"]
    assert rows[0].mean > 0.8
    assert "| lda | none method.shrinkage=0.1 | - |" in markdown(rows)


def test_every_arm_is_tried_at_as_many_settings() -> None:
    words = ["fedavg none", "feddyn none", "ridge none", "fedavg ggeur model.init=zeros,lda,ridge", "ccvr none"]
    made = arms({"quickstart": ("experiment=quickstart",)}, words, SHARED)
    fedavg, feddyn, ridge, started, ccvr = ([dict(c.values) for c in arm.choices(Grid())] for arm in made)
    assert {len(each) for each in (fedavg, feddyn, ridge, started, ccvr)} == {12}
    assert fedavg[0] == {"training.lr": 0.1} and fedavg[-1] == {"training.lr": 20.0}
    assert len({each["training.lr"] for each in feddyn}) == 4 and len({each["method.alpha"] for each in feddyn}) == 3
    assert all(each.keys() == {"method.alpha"} for each in ridge)
    assert {each["model.init"] for each in started} == {"zeros", "lda", "ridge"}
    assert not made[3].control
    assert ccvr == fedavg


def test_a_choice_at_an_end_of_its_grid_is_marked(done: tuple[Path, list[Row]]) -> None:
    (arm,) = arms({"quickstart": ("experiment=quickstart",)}, ["fedprox none method.mu=0.1,0.2,0.3"], SHARED)
    ends = {choice.words for choice in arm.choices(Grid((1.0, 4.0), 9))}
    assert {"lr 1*, mu 0.1*", "lr 2, mu 0.2", "lr 4*, mu 0.2", "lr 2, mu 0.3*"} <= ends
    row = replace(done[1][0], choice=arm.choices(Grid((1.0, 4.0), 9))[0])
    (line,) = csv.DictReader(table.as_csv([row]).splitlines())
    assert line["at_grid_edge"] == "training.lr; method.mu"
    (started,) = few("none model.init=zeros,ridge")
    assert [choice.edges for choice in started.choices(Grid((1.0, 4.0), 2))] == [(), ()]  # names have no ends


def test_a_seed_is_for_the_table_or_for_the_tuning(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="seed 2 is among those of the table and of the tuning"):
        compare(tmp_path, few("none"), GRID, seeds=(1, 2), tuning=(2, 3))


def test_the_file_has_the_control_beside_the_gain(done: tuple[Path, list[Row]]) -> None:
    none, repeat = (replace(row, scores=s) for row, s in zip(done[1], [(0.4, 0.5), (0.5, 0.7)], strict=True))
    first, second = csv.DictReader(table.as_csv([none, repeat]).splitlines())
    assert (first["control"], first["control_accuracy"]) == ("fedavg repeat", "0.6")
    assert float(first["gain"]) == pytest.approx(-15.0)
    assert float(first["gain_half_width"]) == pytest.approx(63.53, abs=0.01)  # t(1 degree, 0.975) = 12.706 times 5
    assert (second["control"], second["gain"]) == ("", "")
    assert (first["settings_tried"], first["seeds"], first["accuracies"]) == ("2", "2", "0.4 0.5")


def test_arms_begin_at_zero_unless_they_say_otherwise() -> None:
    cifar10 = {"cifar10": ("experiment=cifar10", "data=features", "data.path=made.npz")}
    plain, started = arms(cifar10, ["fedavg repeat", "fedavg repeat model.init=lda"], ())
    assert plain.control and not started.control
    assert plain.variation == "repeat"
    (adapter,) = arms(cifar10, ["fedclip none model=clip_adapter"], ())
    assert adapter.config.model.kind == "clip_adapter"


def test_an_arm_is_a_method_and_an_augmentation() -> None:
    with pytest.raises(FedgeoError, match="fedavg: an arm is a method and an augmentation"):
        arms({"quickstart": ("experiment=quickstart",)}, ["fedavg"], ())


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_cannot_be_run_at_all_is_a_fault_of_its_run(tmp_path: Path, jobs: int) -> None:
    (arm,) = few("none data=features data.path=/nowhere.npz")
    (fault,) = run_all(tmp_path, [Task(arm, FAST, 1)], jobs, note=lambda _: None).values()
    assert "/nowhere.npz" in fault


@pytest.mark.slow
def test_the_command_runs_in_several_processes_and_goes_on_after_it_was_stopped(tmp_path: Path) -> None:
    words = ["quickstart", "--methods", "fedavg", "--variations", "none", "repeat", "--settings", "1"]
    words += ["--seeds", "1", "2", "3", "--tuning-seeds", "4", "--set", *SHARED, "--folder", str(tmp_path / "out")]
    stopped = Command("compare.py", tmp_path, *words, "--jobs", "2")
    wait_for("a run that is done", lambda: list((tmp_path / "out").rglob("summary.json")))
    workers = psutil.Process(stopped.pid).children(recursive=True)
    assert workers
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate()
    assert stopped.returncode != 0
    wait_for("its workers to end", lambda: not any(worker.is_running() for worker in workers))
    for jobs in ("2", "1"):
        again = Command("compare.py", tmp_path, *words, "--jobs", jobs)
        said, _ = again.communicate()
        assert again.returncode == 0, said
        assert ("done" in said) == (jobs == "2")
        assert (tmp_path / "out" / "table.md").read_text().count("| fedavg |") == 2
        assert (tmp_path / "out" / "table.csv").read_text().count("quickstart,fedavg,") == 2


def test_a_file_that_is_not_there_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["pacs=/nowhere.npz"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: pacs=/nowhere.npz: no such file") and said.out == ""


@pytest.mark.parametrize("words", ["", "quickstart 'seed=1"])
def test_words_that_name_no_data_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([words]) == 1
    assert "PRESET=FILE, then overrides" in capsys.readouterr().err


def test_a_table_that_cannot_be_written_is_one_line(
    done: tuple[Path, list[Row]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(done[0], folder)
    (folder / "table.md").mkdir()
    words = ["quickstart", "--methods", "fedavg", "--variations", "none", "--rates", "0.05", "0.5"]
    words += ["--settings", "2", "--seeds", "11", "--tuning-seeds", "1"]
    assert script.main([*words, "--set", *SHARED, "--folder", str(folder), "--jobs", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "table.md" in said and said.count("\n") == 1


def test_the_terminals_table_breaks_no_figure(
    done: tuple[Path, list[Row]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table.show(done[1])
    said = capsys.readouterr().out
    assert "…" not in said
    for row in done[1]:
        assert any(all(cell in line for cell in table.cells(row, done[1])) for line in said.splitlines())
