"""The main job, whole: GGEUR on real handwritten digits leaves a true result behind."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.geometry.class_statistics import gather
from app.runs.run_directory import RunDirectory
from tests.running import drawing, rounds, run_in_process

SUMMARY_KEYS = {
    *("status", "error", "experiment", "variant", "method", "augmentation", "seed", "rounds", "metric", "final"),
    *("best", "best_round", "val_metric", "by_domain", "mean_over_domains", "std_over_domains", "parameters"),
    *("added_samples", "perturbation_rms", "seconds", "cpu_seconds", "bytes_up", "bytes_down", "peak_memory_mb"),
}
ROUND_KEYS = {
    *("round", "accuracy", "f1_macro", "loss", "accuracy_by_domain", "train_loss", "bytes_up", "bytes_down"),
    *("clients", "failures"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    with drawing():
        run_in_process(folder)
    return folder


def test_the_run_directory_keeps_its_contract(ran: Path) -> None:
    summary = json.loads((ran / "summary.json").read_text())
    assert set(summary) >= SUMMARY_KEYS
    assert (summary["status"], summary["error"]) == ("completed", None)
    lines = rounds(ran)
    assert [line["round"] for line in lines] == list(range(1, 21))
    assert all(set(line) >= ROUND_KEYS for line in lines)
    for name in ("config.yaml", "versions.json", "partition.json", "report.html", "figures/curves.png"):
        assert (ran / name).stat().st_size > 100
    assert (ran / "figures" / "label_distribution.png").stat().st_size > 1000


def test_final_and_best_can_be_recomputed_from_the_rounds(ran: Path) -> None:
    summary, lines = json.loads((ran / "summary.json").read_text()), rounds(ran)
    assert math.isclose(summary["final"], sum(line["accuracy"] for line in lines[-5:]) / 5)
    best = max(lines, key=lambda line: line["val_accuracy"])
    assert (summary["best_round"], summary["best"]) == (best["round"], best["accuracy"])


def test_the_saved_model_scores_what_the_rounds_say(ran: Path) -> None:
    dataset = image_dataset(load(f"run_dir={ran}"))
    for which, number in (("final", 20), ("best", json.loads((ran / "summary.json").read_text())["best_round"])):
        with safe_open(ran / f"model-{which}.safetensors", "np") as model:
            weight, bias = model.get_tensor("linear.weight"), model.get_tensor("linear.bias")
            assert json.loads(model.metadata()["fedgeo"])["classes"] == [str(d) for d in range(10)]
        test = dataset.split.test
        accuracy = np.mean((dataset.features(test) @ weight.T + bias).argmax(1) == dataset.source.labels[test])
        assert math.isclose(accuracy, rounds(ran)[number - 1]["accuracy"])


def test_bytes_are_the_payload_of_what_is_sent(ran: Path) -> None:
    """10 clients, 650 float32 weights each way a round; before the rounds, statistics up and geometry down."""
    assert {(line["bytes_up"], line["bytes_down"]) for line in rounds(ran)} == {(26_000, 26_000)}
    summary = json.loads((ran / "summary.json").read_text())
    dataset = image_dataset(load(f"run_dir={ran}"))
    packed = [gather(dataset.train(k).x, dataset.train(k).y).to_arrays("float32") for k in range(10)]
    assert summary["bytes_up"] == 20 * 26_000 + sum(array.nbytes for arrays in packed for array in arrays.values())


def test_the_perturbation_is_what_the_shapes_say(ran: Path) -> None:
    """Close to the root of the mean trace of the merged class covariances, cut at 95 % of the variance."""
    summary = json.loads((ran / "summary.json").read_text())
    config = load(f"run_dir={ran}")
    dataset = image_dataset(config)
    x, y = dataset.features(np.concatenate(dataset.partition.clients)), dataset.source.labels
    y = y[np.concatenate(dataset.partition.clients)]
    added, energy = 0, 0.0
    counts = dataset.partition.counts(dataset.source.labels, 10)
    for label in range(10):
        eigenvalues = np.linalg.eigvalsh(np.cov(x[y == label].astype(float), rowvar=False, bias=True))[::-1]
        kept = np.searchsorted(np.cumsum(eigenvalues), 0.95 * eigenvalues.sum()) + 1
        drawn = np.maximum(0, config.augmentation.target - counts[:, label]).sum()
        added += drawn
        energy += drawn * eigenvalues[:kept].sum()
    assert summary["added_samples"] == added
    assert abs(summary["perturbation_rms"] / math.sqrt(energy / added) - 1) < 0.02


def test_repeat_adds_as_many_samples_and_perturbs_none(ran: Path, tmp_path: Path) -> None:
    repeated = run_in_process(tmp_path / "run", "augmentation=repeat", "federation.rounds=1")
    assert repeated["added_samples"] == json.loads((ran / "summary.json").read_text())["added_samples"]
    assert repeated["perturbation_rms"] == 0


def test_augmentation_helps_under_label_skew(ran: Path, tmp_path: Path) -> None:
    plain = run_in_process(tmp_path / "run", "augmentation=none")
    assert json.loads((ran / "summary.json").read_text())["final"] > plain["final"] + 0.03


def test_a_run_never_writes_over_another(ran: Path) -> None:
    before = (ran / "summary.json").read_text()
    with pytest.raises(FedgeoError, match="it exists already"):
        RunDirectory(ran, load())
    assert (ran / "summary.json").read_text() == before


def test_a_failed_run_keeps_what_it_had(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="10 of 10 clients failed"):
        run_in_process(tmp_path / "run", "training.lr=1e38", "federation.rounds=2")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "client 0: FloatingPointError" in summary["error"]
    assert "failed" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "partition.json").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("federation.clients=5000", "federation.clients"),
        ("method.mu=1", "method.mu"),
        ("federation.partition_file=/nowhere.json", "federation.partition_file=/nowhere.json"),
    ],
)
def test_faults_that_need_the_data_name_their_key(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        run_in_process(tmp_path / "run", override)


def test_flowers_own_median_runs_unchanged_as_a_base(tmp_path: Path) -> None:
    summary = run_in_process(tmp_path / "run", "method=fedmedian", "federation.rounds=5")
    assert summary["status"] == "completed"
    assert summary["final"] > 0.5


@pytest.mark.parametrize("method", ["fedprox", "fedavgm", "fedopt", "scaffold", "moon", "feddyn", "fedproto", "fedntd"])
def test_every_base_method_runs_over_the_grid(tmp_path: Path, method: str) -> None:
    """The whole way, with client state and what is shared in messages, over two nodes and half the clients."""
    options = ("federation.rounds=6", "federation.participation=0.5", f"method={method}")
    one = run_in_process(tmp_path / "one", *options)
    run_in_process(tmp_path / "two", *options, nodes=2)
    assert one["final"] > 0.3
    assert rounds(tmp_path / "one") == rounds(tmp_path / "two")
