"""A run that was broken off and resumed leaves what an uninterrupted one leaves, bit for bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.client.client_states import ClientStates
from app.common.errors import FedgeoError
from app.launch import job as launch
from app.server.checkpoints import Checkpoints
from app.server.drawing import Drawing
from tests.running import rounds

DIGITS = ("federation.rounds=4", "federation.participation=0.6", "training.epochs=1")
EEG = ("experiment=eeg_demo", "federation.rounds=4", "data.subjects=4", "data.trials_per_class=12", "training.epochs=1")
RUNS = {
    "fedavg": ("method=fedavg", *DIGITS),
    "scaffold": ("method=scaffold", *DIGITS),
    "fedopt": ("method=fedopt", "method.optimiser=adam", *DIGITS),
    "fedproto": ("method=fedproto", "augmentation=none", *DIGITS),
    "fedmedian": ("method=fedmedian", *DIGITS),
    "plateau": ("training.schedule=plateau", "training.patience=0", *DIGITS),
    "rlavg": ("method=rlavg", "training.schedule=plateau", *EEG),
    "eegnet": ("method=fedavg", "model=eegnet", "training.keep_moments=true", *EEG),
}
COMPARED = (
    *("model-final.safetensors", "model-best.safetensors"),
    *("augmentation.json", "confusion.json", "partition.json"),
)
UNEQUAL = ("seconds", "cpu_seconds", "peak_memory_mb")


class Killed(BaseException):
    """Nothing on the way catches it, as nothing catches a kill."""


def run(words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    return launch.run_in_process(launch.plan(("engine=inprocess", *words), run_dir=folder), lambda row: None)


def resume(folder: Path, *words: str) -> dict[str, Any]:
    return launch.run_in_process(launch.plan((f"resume={folder}", *words)), lambda row: None)


def break_off(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], folder: Path, where: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        where(patch)
        with pytest.raises(Killed):
            run(words, folder)


def calls_until_killed(cls: type, name: str, left: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Kills in the call number ``left`` of a method, before it has done anything."""
    whole, counter = getattr(cls, name), [left]

    def wrapper(*given: Any, **named: Any) -> Any:
        counter[0] -= 1
        if counter[0] < 0:
            raise Killed
        return whole(*given, **named)

    return lambda patch: patch.setattr(cls, name, wrapper)


PLACES = {
    "before the checkpoint of round 3": calls_until_killed(Checkpoints, "save", 3),
    "while clients of round 3 train": calls_until_killed(ClientStates, "save", 2 * 6 + 3),
    "before the first checkpoint": calls_until_killed(Checkpoints, "save", 0),
    "after the last round": calls_until_killed(Drawing, "on_end", 0),
}


def equal(folder: Path, reference: Path) -> None:
    assert rounds(folder) == rounds(reference)
    for name in COMPARED:
        path = reference / name
        assert (folder / name).exists() == path.exists()
        if path.exists():
            assert (folder / name).read_bytes() == path.read_bytes(), name
    summaries = [json.loads((f / "summary.json").read_text()) for f in (folder, reference)]
    for key in UNEQUAL:
        del summaries[0][key], summaries[1][key]
    assert summaries[0] == summaries[1]


@pytest.mark.parametrize("method", RUNS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RUNS[method], tmp_path / "whole")
    each = 2 if "experiment=eeg_demo" in RUNS[method] else 6  # clients that take part in a round
    where = calls_until_killed(ClientStates, "save", 2 * each + each // 2)
    break_off(monkeypatch, RUNS[method], tmp_path / "broken", where)
    assert len(rounds(tmp_path / "broken")) == 2
    resume(tmp_path / "broken")
    equal(tmp_path / "broken", tmp_path / "whole")
    assert not (tmp_path / "broken" / "state").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of SCAFFOLD on augmented samples: state on both sides, and shapes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(RUNS["scaffold"], folder)
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_it_does_not_matter_where_it_was_broken_off(
    place: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(monkeypatch, RUNS["scaffold"], tmp_path / "run", PLACES[place])
    resume(tmp_path / "run")
    equal(tmp_path / "run", whole)


def test_it_can_be_broken_off_again_and_torn_lines_are_dropped(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    break_off(monkeypatch, RUNS["scaffold"], folder, calls_until_killed(Checkpoints, "save", 2))
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "accur')
    with monkeypatch.context() as patch, pytest.raises(Killed):
        calls_until_killed(Checkpoints, "save", 1)(patch)
        resume(folder)
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    resume(folder)
    equal(folder, whole)


def test_shapes_that_a_node_lost_are_sent_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    break_off(monkeypatch, RUNS["scaffold"], folder, calls_until_killed(Checkpoints, "save", 3))
    (shapes,) = (folder / "state").glob("*.safetensors")
    shapes.unlink()
    resume(folder)
    lines, expected = rounds(folder), rounds(whole)
    assert lines[2]["bytes_down"] > expected[2]["bytes_down"] and lines[2]["failures"] == 0
    assert lines[3] == expected[3]
    for name in COMPARED:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_damaged_shapes_are_sent_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    break_off(monkeypatch, RUNS["scaffold"], folder, calls_until_killed(Checkpoints, "save", 3))
    (shapes,) = (folder / "state").glob("*.safetensors")
    content = bytearray(shapes.read_bytes())
    content[-1] ^= 1
    shapes.write_bytes(bytes(content))
    resume(folder)
    assert (folder / "model-final.safetensors").read_bytes() == (whole / "model-final.safetensors").read_bytes()


def test_a_run_can_be_given_more_rounds(tmp_path: Path) -> None:
    words = ("method=fedopt", "augmentation=none", "training.epochs=1", "training.schedule=plateau")
    run((*words, "federation.rounds=5"), tmp_path / "long")
    run((*words, "federation.rounds=3"), tmp_path / "short")
    with pytest.raises(FedgeoError, match="the run is complete; to go on, give federation.rounds above 3"):
        resume(tmp_path / "short")
    resume(tmp_path / "short", "federation.rounds=5")
    equal(tmp_path / "short", tmp_path / "long")
    with pytest.raises(FedgeoError, match="federation.rounds above 5"):
        resume(tmp_path / "short")


def test_a_complete_run_whose_clients_kept_something_cannot_go_on(whole: Path) -> None:
    before = (whole / "rounds.jsonl").read_bytes()
    with pytest.raises(FedgeoError, match="the state of its clients for method=scaffold is gone"):
        resume(whole, "federation.rounds=6")
    assert (whole / "rounds.jsonl").read_bytes() == before


REFUSED = [
    ("seed=2", "seed is 1 there, not 2"),
    ("training.lr=0.5", "training.lr is 2.0 there, not 0.5"),
    ("federation.rounds=3", "federation.rounds=3 is below the run's 4"),
    ("privacy.min_count=3", "privacy.min_count is 1 there, not 3"),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken") / "run"
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, ("augmentation=none", *DIGITS), folder, calls_until_killed(Checkpoints, "save", 2))
    return folder


@pytest.mark.parametrize(("word", "message"), REFUSED)
def test_nothing_else_may_change(broken: Path, word: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        launch.plan([f"resume={broken}", word])


def test_deadlines_and_the_engine_may_change(broken: Path) -> None:
    job = launch.plan([f"resume={broken}", "engine=flower", "federation.deadline=7", "federation.max_failures=0.5"])
    assert (job.config.engine, job.config.federation.deadline, job.run_dir) == ("flower", 7, broken)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="no run was begun there"):
        launch.plan([f"resume={tmp_path}"])
    assert list(tmp_path.iterdir()) == []


def test_other_data_are_refused(broken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(broken, folder)
    partition = folder / "partition.json"
    partition.write_text(partition.read_text().replace("0", "1", 1))
    with pytest.raises(FedgeoError, match="the data, or who holds what, has changed"):
        resume(folder)


def test_a_strategy_of_flowers_that_keeps_state_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = "method.target=flwr.serverapp.strategy:FedAdam"
    words = ("method=fedmedian", target, "augmentation=none", *DIGITS)  # as anyone may name one of them
    break_off(monkeypatch, words, tmp_path / "run", calls_until_killed(Checkpoints, "save", 2))
    with pytest.raises(FedgeoError, match="FedAdam keeps current_arrays, m_t, v_t from round to round"):
        resume(tmp_path / "run")
