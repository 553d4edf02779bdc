"""federation.validation=clients: each validates on a share of its own training samples, and tells counts alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from app.client.node import Node
from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.held_back import held_back
from app.data.images.dataset import ImageDataset, image_dataset
from app.strategies.compatibility import check
from tests.running import rounds, run_in_process

CLIENTS = ("experiment=quickstart", "augmentation=none", "federation.validation=clients")
SHORT = ("federation.rounds=2", "training.epochs=1")


def dataset(*overrides: str) -> ImageDataset:
    return image_dataset(load([*CLIENTS, *overrides]))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array),
    fraction=st.sampled_from([0.1, 0.3, 0.5, 0.9]),
    seed=st.integers(0, 9),
)
def test_a_share_of_every_class_is_kept_back_and_one_of_each_stays(
    labels: np.ndarray, fraction: float, seed: int
) -> None:
    kept = held_back(labels, fraction, seed, 3)
    assert np.array_equal(kept, held_back(labels, fraction, seed, 3))
    sizes = np.bincount(labels, minlength=5)
    taken = np.bincount(labels[kept], minlength=5)
    assert (taken[sizes > 0] < sizes[sizes > 0]).all()
    assert (np.abs(taken - fraction * sizes)[sizes > 1] <= 1 + 1e-9).all()
    assert kept.any() == (sizes.max() > 1)
    assert not held_back(labels, 0.0, seed, 3).any()


def test_the_clients_hold_what_the_server_would_have_and_the_test_samples_are_its() -> None:
    ours, theirs = dataset(), dataset("federation.validation=server")
    assert (ours.central, theirs.central) == (("test",), ("val", "test"))
    assert np.array_equal(ours.held_out("test", None).x, theirs.held_out("test", None).x)
    held = [(len(ours.train(k)), len(ours.held_out("val", k))) for k in range(10)]
    assert [sum(pair) for pair in held] == [len(rows) for rows in ours.partition.clients]
    given_away = sum(map(len, theirs.partition.clients)) + len(theirs.held_out("val", None))
    assert sum(map(sum, held)) == given_away
    assert 0.08 < sum(val for _, val in held) / given_away < 0.12
    with pytest.raises(FedgeoError, match="each client holds the val samples"):
        ours.held_out("val", None)
    with pytest.raises(FedgeoError, match="the server holds the test samples"):
        ours.held_out("test", 0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_round_is_chosen_by_the_clients_summed_counts(tmp_path: Path, nodes: int) -> None:
    run_dir = tmp_path / "run"
    summary = run_in_process(run_dir, *CLIENTS, *SHORT, nodes=nodes)
    line = rounds(run_dir)[-1]
    head = load_file(run_dir / "model-final.safetensors")
    right = total = 0
    data = dataset(*SHORT)
    for k in range(10):
        val = data.held_out("val", k)
        found = (val.x @ head["linear.weight"].T + head["linear.bias"]).argmax(axis=1)
        right, total = right + int((found == val.y).sum()), total + len(val)
    assert line["val_accuracy"] == pytest.approx(right / total)
    scores = {row["round"]: row["val_accuracy"] for row in rounds(run_dir)}
    assert summary["best_round"] == max(scores, key=lambda number: scores[number])
    test = data.held_out("test", None)
    found = (test.x @ head["linear.weight"].T + head["linear.bias"]).argmax(axis=1)
    assert line["accuracy"] == pytest.approx(float((found == test.y).mean()))


@pytest.mark.parametrize("method", ["local", "centralised", "lda"])
def test_methods_without_a_shared_model_or_rounds_are_validated_too(tmp_path: Path, method: str) -> None:
    run_in_process(tmp_path / "run", *CLIENTS, *SHORT, f"method={method}")
    line = rounds(tmp_path / "run")[-1]
    assert 0 < line["val_accuracy"] <= 1 and 0 < line["accuracy"] <= 1


def test_what_is_told_keeps_the_policy_as_test_scores_do(tmp_path: Path) -> None:
    overrides = [*CLIENTS, *SHORT, "privacy=site", "data.val_fraction=0.4", "privacy.min_count=5"]
    overrides += ["privacy.min_total=5", "privacy.round_counts=5"]
    config = load(overrides)
    whole = image_dataset(config)
    node = Node(config, whole, list(range(10)), tmp_path / "state")
    weights, told = node.initial(), 0
    for k in range(10):
        counted = node.evaluate(k, 1, weights)
        assert counted["test"] == {}
        sizes = np.bincount(whole.held_out("val", k).y, minlength=10)
        training = np.bincount(whole.train(k).y, minlength=10)
        expected = np.where((sizes >= 5) & (training >= 5), sizes // 5 * 5, 0)
        found = sum((confusion for confusion, _ in counted["val"].values()), np.zeros((10, 10), np.int64)).sum(axis=1)
        assert np.array_equal(found, expected)
        told += int(found.sum())
    assert 0 < told < sum(len(whole.held_out("val", k)) for k in range(10))
    said = run_in_process(tmp_path / "run", *overrides)["privacy"]["meaning"]
    assert any(text.startswith("Scores are over the validation samples that may be reported") for text in said)


def test_subjects_that_are_left_out_cannot_be_validated_on_by_clients() -> None:
    config = load(["experiment=eeg_demo", "data.split=leave_subjects_out", "federation.validation=clients"])
    with pytest.raises(FedgeoError, match="federation.validation=clients: data.split=leave_subjects_out"):
        check(config)
