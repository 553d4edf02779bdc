"""What must survive a process: files that are whole or not there, client states, checkpoints, the run's lines."""

import errno
import json
import math
from pathlib import Path

import pytest
import torch

from app.client.client_states import ClientStates
from app.common.errors import FedgeoError
from app.common.files import write_atomic
from app.runs.checkpoint import Checkpoint
from app.runs.resume import FOLDER, Origin, lock, rewind
from app.strategies.schedule import LearningRate


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def broken(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "the disk is full", str(self))

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match=r"the disk is full: '.*/file'$"):
        write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_last_two_states_of_a_client_are_kept(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for number in (1, 2, 3, 10):
        states.save(4, number, {"c": torch.tensor(float(number))})
    assert sorted(p.name for p in (tmp_path / "4").iterdir()) == ["10.safetensors", "3.safetensors"]
    assert states.load(4, before=11)["c"] == 10
    assert states.load(5, before=11) == {}


def test_states_of_rounds_that_are_done_again_are_discarded(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for number in (2, 3):
        states.save(0, number, {"c": torch.tensor(float(number))})
    assert states.load(0, before=3)["c"] == 2
    assert [p.name for p in (tmp_path / "0").iterdir()] == ["2.safetensors"]


def test_a_half_written_state_does_not_count(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.save(0, 1, {"c": torch.tensor(1.0)})
    (tmp_path / "0" / ".2.safetensors.4711").write_bytes(b"half")
    assert states.load(0, before=9)["c"] == 1


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {"linear.weight": torch.randn(3, 4, generator=generator), "double": torch.randn(2, dtype=torch.float64)}
    facts = {"loss": 0.1 + 0.2, "best": -math.inf, "bytes": [2**60, 7], "name": "ä/b"}
    # the same tensor may serve two purposes
    saved = Checkpoint(7, {"weights": weights, "best": weights, "server": {"m.linear.weight": torch.zeros(1)}}, facts)
    saved.save(tmp_path / "c.safetensors")
    found = Checkpoint.load(tmp_path / "c.safetensors")
    assert found is not None and found.round == 7 and found.facts == facts
    for of in ("weights", "best"):
        group = found.group(of)
        assert group.keys() == weights.keys()
        assert all(torch.equal(group[name], weights[name]) for name in weights)
        assert group["double"].dtype == torch.float64
    assert found.group("server").keys() == {"m.linear.weight"} and found.group("test") == {}


def test_what_is_no_checkpoint_is_told_in_a_line(tmp_path: Path) -> None:
    assert Checkpoint.load(tmp_path / "none") is None
    (tmp_path / "half").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(FedgeoError, match="half is no checkpoint"):
        Checkpoint.load(tmp_path / "half")


def test_the_rate_goes_on_where_it_stood() -> None:
    losses = [1.0, 0.9, 0.95, 0.97, 0.96, 0.5, 0.6, 0.61, 0.62]
    whole, first, second = (LearningRate(0.3, "plateau", patience=1, factor=0.5) for _ in range(3))
    for loss in losses[:4]:
        first.step(loss)
    second.restore(json.loads(json.dumps(first.state())))
    for loss in losses[:4]:
        whole.step(loss)
    assert second.lr == whole.lr
    for loss in losses[4:]:
        whole.step(loss)
        second.step(loss)
        assert second.lr == whole.lr
    assert whole.lr < 0.3


LINES = "".join(json.dumps({"round": n, "loss": 1 / n}) + "\n" for n in (1, 2, 3))


@pytest.mark.parametrize("tail", ["", '{"round": 4, "lo', "\0\0\0\0\n", '{"round": 4}\n{"round": 5}\n', "[]\n"])
def test_rewinding_keeps_the_rounds_of_the_checkpoint(tmp_path: Path, tail: str) -> None:
    (tmp_path / "rounds.jsonl").write_text(LINES + tail)
    (tmp_path / "summary.json").write_text("{}")
    assert [row["round"] for row in rewind(tmp_path, 3)] == [1, 2, 3]
    assert (tmp_path / "rounds.jsonl").read_text() == LINES
    assert not (tmp_path / "summary.json").exists()
    assert [row["round"] for row in rewind(tmp_path, 2)] == [1, 2]


def test_lines_that_lack_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text(LINES)
    with pytest.raises(FedgeoError, match="rounds 1 to 4 are not all there"):
        rewind(tmp_path, 4)


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second opening of the file is to the lock what a second process is."""
    monkeypatch.setattr("app.runs.resume.LOCK_SECONDS", 0.0)
    with lock(tmp_path), pytest.raises(FedgeoError, match="a process is still at work there"):
        lock(tmp_path)
    lock(tmp_path).close()


def test_the_origin_of_a_run_comes_back(tmp_path: Path) -> None:
    origin = Origin("0123456789abcdef", "quickstart", "seed=3 run_dir='it is'", None)
    origin.save(tmp_path)
    assert Origin.load(tmp_path) == origin
    (tmp_path / FOLDER / "run.json").write_text('{"run": 1}')
    with pytest.raises(FedgeoError, match="no run was begun there"):
        Origin.load(tmp_path)
