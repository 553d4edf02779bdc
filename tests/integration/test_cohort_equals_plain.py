"""training=cohort against training=plain through the whole app, and on any number of nodes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from app.algorithms.base import Algorithm
from app.client.training_sets import TrainingSets
from app.config.compose import load
from app.grids.placement import hosted, together
from app.launch.job import nodes
from tests.running import rounds, run_in_process

SHORT = ("federation.rounds=3", "training.epochs=2", "training.lr=0.1")


def model(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model-final.safetensors")


def assert_near(folder: Path, other: Path, tolerance: float = 1e-5) -> None:
    ours, reference = model(folder), model(other)
    assert ours.keys() == reference.keys()
    for name, value in reference.items():
        assert torch.linalg.vector_norm(ours[name] - value) <= tolerance * torch.linalg.vector_norm(value), name


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("augmentation=none", "method=scaffold"),
        ("augmentation=fedmix", "method=moon"),
        ("method=fedproto", "training.keep_moments=true", "federation.participation=0.6"),
        ("method=feddyn", "steps=equal"),
    ],
    ids=" ".join,
)
def test_cohort_and_plain_give_the_same_run(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    for loop in ("cohort", "plain"):
        run_in_process(tmp_path / loop, *SHORT, f"training={loop}", *overrides)
    assert_near(tmp_path / "cohort", tmp_path / "plain")
    for ours, reference in zip(rounds(tmp_path / "cohort"), rounds(tmp_path / "plain"), strict=True):
        assert ours["train_loss"] == pytest.approx(reference["train_loss"], rel=1e-5)
        assert (ours["clients"], ours["bytes_up"]) == (reference["clients"], reference["bytes_up"])


@pytest.mark.parametrize("auxiliary", [("federation.participation=0.5",), ("federation.clients=23",)], ids=" ".join)
def test_the_number_of_nodes_changes_no_byte(tmp_path: Path, auxiliary: tuple[str, ...]) -> None:
    for number in (1, 3):
        run_in_process(tmp_path / str(number), *SHORT, "training=cohort", *auxiliary, nodes=number)
    assert rounds(tmp_path / "3") == rounds(tmp_path / "1")
    assert_near(tmp_path / "3", tmp_path / "1", tolerance=0)


def test_what_the_batched_loop_cannot_do_falls_back_to_the_plain_one(tmp_path: Path) -> None:
    for loop in ("cohort", "plain"):
        run_in_process(tmp_path / loop, *SHORT, f"training={loop}", "model.hidden=8")
    assert rounds(tmp_path / "cohort") == rounds(tmp_path / "plain")


def test_a_client_that_cannot_begin_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = TrainingSets.get

    def broken(self: TrainingSets, client: int, digest: str) -> object:
        if client == 3 and digest:
            raise RuntimeError("the disk is gone")
        return get(self, client, digest)

    monkeypatch.setattr(TrainingSets, "get", broken)
    run_in_process(tmp_path / "a", *SHORT, "federation.max_failures=0.1", nodes=1)
    run_in_process(tmp_path / "b", *SHORT, "federation.max_failures=0.1", nodes=2)
    assert [(line["clients"], line["failures"]) for line in rounds(tmp_path / "a")] == [(9, 1)] * 3
    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")


def test_a_method_that_fails_for_one_client_fails_for_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Algorithm.loss

    def choosy(self: Algorithm, *given: object) -> torch.Tensor:
        if (given[3] == 7).all():  # client 7's chunk is then trained one by one
            raise RuntimeError("nothing but sevens")
        return loss(self, *given)  # type: ignore[arg-type]

    run_in_process(tmp_path / "calm", *SHORT, "augmentation=none", "method=moon")
    monkeypatch.setattr(Algorithm, "loss", choosy)
    run_in_process(tmp_path / "choosy", *SHORT, "augmentation=none", "method=moon", nodes=2)
    assert_near(tmp_path / "calm", tmp_path / "choosy", 1e-6)


@pytest.mark.parametrize(("clients", "places", "chunk"), [(10, 2, 5), (23, 3, 10), (500, 2, 10), (5, 8, 3), (4, 4, 1)])
def test_nodes_host_whole_chunks_and_everyone_once(clients: int, places: int, chunk: int) -> None:
    shares = [hosted(clients, place, places, chunk) for place in range(places)]
    assert [c for share in shares for c in share] == list(range(clients))
    for share in shares:
        for first in {c // chunk for c in share}:
            assert set(range(first * chunk, min(clients, (first + 1) * chunk))) <= set(share)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("federation.clients_per_node=1",), 2),
        (("federation.clients_per_node=5",), 2),
        (("federation.clients_per_node=10",), 1),
        (("federation.clients_per_node=2", "training=plain"), 5),
        (("federation.clients=40", "federation.clients_per_node=20"), 2),
    ],
)
def test_clients_per_node_says_how_many_nodes_there_are(overrides: tuple[str, ...], expected: int) -> None:
    assert nodes(load(overrides)) == expected


def test_what_is_trained_side_by_side() -> None:
    assert together(load(()), 10) == 5
    for plain in ("training=plain", "model.hidden=3", "training.optimiser=adam"):
        assert together(load((plain,)), 10) == 1
