"""FedSPDnet, whole: simulated and real recordings, every method, and what is told."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from app.config.compose import load
from app.data.eeg.dataset import EegDataset, eeg_dataset
from app.data.experiment import experiment
from app.data.federated_dataset import Samples
from app.geometry.stiefel import distance_to_stiefel
from app.models.eegnet import EEGNet
from app.training.evaluation import f1_macro
from app.training.plain import predict
from scripts import run as script
from tests.eeg_files import make_raw, save
from tests.eeg_runs import EEGNET, EVENTS, SIMULATED, recorded, simulated
from tests.running import rounds, run_in_process


def tensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


# --- engines and methods ------------------------------------------------------------------------------

METHODS = [
    ("method=projavg",),
    ("method=rlavg", "federation.participation=0.5"),
    ("method=fedavg",),
    (*EEGNET, "federation.participation=2"),
    ("method=tangent_lr",),
    ("method=mdm",),
    ("method=local",),
    ("method=projavg", "training.keep_moments=true", "federation.weights=real"),
    ("method=rlavg", "data.split=leave_subjects_out"),
    ("method=fedopt",),
]


@pytest.mark.parametrize("options", METHODS, ids=" ".join)
def test_the_number_of_nodes_changes_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    summaries = [simulated(tmp_path / str(nodes), *options, nodes=nodes) for nodes in (1, 3)]
    assert rounds(tmp_path / "1") == rounds(tmp_path / "3")
    assert summaries[0]["status"] == "completed"
    if options != ("method=local",):
        models = [tmp_path / str(nodes) / "model-final.safetensors" for nodes in (1, 3)]
        assert models[0].read_bytes() == models[1].read_bytes()


def test_each_method_leaves_the_weights_that_it_should(tmp_path: Path) -> None:
    expected = {
        "projavg": {"stiefel.0", "linear.weight", "linear.bias"},
        "fedavg": {"bimap.0.matrix", "linear.weight", "linear.bias"},
        "tangent_lr": {"mean", "linear.weight", "linear.bias"},
        "mdm": {"means"},
    }
    for method, names in expected.items():
        simulated(tmp_path / method, f"method={method}", "federation.rounds=1")
        assert set(tensors(tmp_path / method / "model-final.safetensors")) == names
    kept = tensors(tmp_path / "projavg" / "model-final.safetensors")["stiefel.0"]
    assert kept.dtype == torch.float64 and distance_to_stiefel(kept) < 1e-12
    simulated(tmp_path / "local", "method=local", "federation.rounds=1")
    assert not list((tmp_path / "local").glob("model-*"))  # there is no common model


def test_saved_models_score_what_the_rounds_say(tmp_path: Path) -> None:
    for method in ("projavg", "tangent_lr", "centralised"):
        words = [*SIMULATED, f"method={method}"]
        run_in_process(tmp_path / method, *words)
        config = load(words)
        dataset = eeg_dataset(config)
        model = experiment(config).model()
        model.load(tensors(tmp_path / method / "model-final.safetensors"))
        own = [dataset.held_out("test", k) for k in range(len(dataset))]
        x, y = np.concatenate([s.x for s in own]), np.concatenate([s.y for s in own])
        confusion = np.zeros((2, 2), dtype=int)
        np.add.at(confusion, (y, predict(model, x).argmax(1)), 1)
        line = rounds(tmp_path / method)[-1]
        assert line["accuracy"] == pytest.approx(np.trace(confusion) / len(y))
        assert line["f1_macro"] == pytest.approx(f1_macro(confusion))
        told = json.loads((tmp_path / method / "confusion.json").read_text())
        assert told["counts"] == confusion.tolist()


def test_scores_are_told_pooled_by_client_and_by_subject(tmp_path: Path) -> None:
    simulated(tmp_path / "run", "federation.rounds=1")
    (line,) = rounds(tmp_path / "run")
    assert set(line["accuracy_by_domain"]) == {f"simulated-{i}" for i in range(1, 7)}
    assert {"f1_macro", "f1_macro_clients", "val_f1_macro", "val_loss", "clamped_fraction"} <= set(line)
    assert 0 <= line["f1_macro_clients"] <= 1 and line["clamped_fraction"] == 0


def test_fitted_methods_take_one_round_and_all_clients(tmp_path: Path) -> None:
    for method in ("tangent_lr", "mdm"):
        summary = simulated(tmp_path / method, f"method={method}", "federation.participation=0.5", "model.hidden=[3]")
        (line,) = rounds(tmp_path / method)
        assert (line["clients"], summary["rounds"]) == (3, 1)
        assert line["bytes_up"] > 2 * 3 * 22 * 22 * 8  # questions of the fit count


def test_local_models_are_each_clients_own_and_nothing_is_sent(tmp_path: Path) -> None:
    simulated(tmp_path / "local", "method=local")
    assert all(line["bytes_down"] == 0 for line in rounds(tmp_path / "local"))
    simulated(tmp_path / "federated")
    first, other = rounds(tmp_path / "local"), rounds(tmp_path / "federated")
    assert first[0]["train_loss"] == other[0]["train_loss"]  # all start from the same weights
    assert first[1]["train_loss"] != other[1]["train_loss"]


def test_centralised_counts_epochs_and_reports_its_best_checkpoint(tmp_path: Path) -> None:
    summary = simulated(tmp_path / "run", "method=centralised", "federation.rounds=10", "training.lr=0.1")
    lines = rounds(tmp_path / "run")
    assert len(lines) == 20  # 10 rounds of 2 epochs
    best = min(lines, key=lambda line: line["val_loss"])
    assert (summary["best_round"], summary["final"]) == (best["round"], best["f1_macro"])
    assert summary["by_domain"] == best["accuracy_by_domain"]
    assert best["round"] < 20  # else this shows nothing


def test_centralised_stops_early(tmp_path: Path) -> None:
    options = ("method=centralised", "method.patience=3", "federation.rounds=30", "training.lr=0.1")
    summary = simulated(tmp_path / "run", *options)
    lines = rounds(tmp_path / "run")
    assert len(lines) == summary["best_round"] + 3 < 60
    simulated(tmp_path / "patient", *options, "method.patience=1000")
    assert rounds(tmp_path / "patient")[: len(lines)] == lines


def test_adam_restarts_each_round_unless_its_moments_are_kept(tmp_path: Path) -> None:
    lines = {}
    for kept in ("false", "true"):
        simulated(tmp_path / kept, f"training.keep_moments={kept}")
        lines[kept] = rounds(tmp_path / kept)
    assert lines["false"][0] == lines["true"][0]
    assert lines["false"][1]["train_loss"] != lines["true"][1]["train_loss"]


def test_the_rate_falls_when_validation_stops_improving(tmp_path: Path) -> None:
    """Patience 0 and a rate that diverges from the best: training slows down against a constant rate."""
    options = ("federation.rounds=6", "training.lr=0.3", "training.patience=0", "training.factor=0.01")
    for schedule in ("plateau", "constant"):
        simulated(tmp_path / schedule, *options, f"training.schedule={schedule}")
    plateau, constant = (rounds(tmp_path / s) for s in ("plateau", "constant"))
    worse = next(i for i in range(1, 6) if constant[i]["val_loss"] > min(c["val_loss"] for c in constant[:i]))
    assert plateau[: worse + 1] == constant[: worse + 1]
    assert plateau[worse + 1]["train_loss"] != constant[worse + 1]["train_loss"]


# --- EEGNet -------------------------------------------------------------------------------------------


def test_a_saved_eegnet_says_where_its_statistics_are_and_works_after_calibration(tmp_path: Path) -> None:
    simulated(tmp_path / "run", *EEGNET)
    path = tmp_path / "run" / "model-final.safetensors"
    with safe_open(path, "pt") as file:
        said = json.loads(file.metadata()["fedgeo"])
    assert "stayed with the clients" in said["batch_norm"] and "calibrate()" in said["batch_norm"]
    weights = tensors(path)
    assert not [name for name in weights if "running" in name or "tracked" in name]
    dataset = eeg_dataset(load([*SIMULATED, *EEGNET]))
    model = EEGNet(22, 384, 2, 128.0)
    model.load(weights)
    x = dataset.held_out("test", 0).x
    before = predict(model, x)
    model.calibrate(torch.from_numpy(x))
    assert not np.allclose(before, predict(model, x))


def test_other_models_say_nothing_of_batch_norm(tmp_path: Path) -> None:
    simulated(tmp_path / "run", "federation.rounds=1")
    with safe_open(tmp_path / "run" / "model-final.safetensors", "pt") as file:
        assert "batch_norm" not in json.loads(file.metadata()["fedgeo"])


# --- what is told -------------------------------------------------------------------------------------


def test_simulated_is_said_wherever_its_numbers_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SIMULATED, "engine=inprocess", "federation.rounds=1"]
    assert script.main([*words, f"run_dir={tmp_path / 'one'}"]) == 0
    assert "Simulated recordings" in capsys.readouterr().out
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["simulated"] is True
    assert "Simulated recordings" in (tmp_path / "one" / "report.html").read_text()
    sweep = ["-m", "-j", "1", *words, "method=projavg,rlavg", "--also", "method=fedavg model=eegnet"]
    assert script.main([*sweep, f"sweep_dir={tmp_path / 'several'}"]) == 0
    assert "Simulated recordings" in capsys.readouterr().out
    assert "Simulated recordings" in (tmp_path / "several" / "report.html").read_text()
    kinds = [json.loads(p.read_text())["method"] for p in sorted((tmp_path / "several").glob("*/summary.json"))]
    assert sorted(kinds) == ["fedavg", "projavg", "rlavg"]


def test_real_recordings_are_not_called_simulated(tmp_path: Path) -> None:
    for subject in ("a", "b"):
        save(make_raw(seed=ord(subject)), tmp_path / "data" / subject / "x_raw.fif")
    summary = run_in_process(tmp_path / "run", *map(shlex.quote, recorded(tmp_path / "data")))
    assert summary["simulated"] is False
    assert "Simulated" not in (tmp_path / "run" / "report.html").read_text()


def test_eigenvalues_that_are_mostly_clamped_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SIMULATED, "engine=inprocess", "model.epsilon=1000", f"run_dir={tmp_path / 'run'}"]
    assert script.main(words) == 0
    said = capsys.readouterr().out
    assert "ReEig clamps 100 % of the eigenvalues" in said and "microvolt" in said
    collapsed, warning = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert "for all test samples" in collapsed and "above that of chance" in collapsed
    assert warning in (tmp_path / "run" / "log.txt").read_text()
    assert warning in (tmp_path / "run" / "report.html").read_text()
    assert simulated(tmp_path / "other")["warnings"] == []


# --- real left and right hands ------------------------------------------------------------------------


def real(folder: Path, test_data: Path, seed: int, *overrides: str) -> float:
    """ProjAvg's macro F1 on the recordings of subjects 1, 7, 15 and 42."""
    words = ["experiment=eeg_folder", f"data.path={test_data / 'eeg'}", EVENTS, "data.runs=[4,8,12]"]
    words += ["data.subjects=[1,7,15,42]", "federation.rounds=60", f"seed={seed}", *overrides]
    return float(run_in_process(folder / str(seed), *map(shlex.quote, words))["final"])


@pytest.mark.slow
def test_projavg_learns_real_left_and_right_hands(tmp_path: Path, test_data: Path) -> None:
    assert np.mean([real(tmp_path, test_data, seed) for seed in (1, 2, 3)]) >= 0.70


@pytest.mark.slow
def test_projavg_learns_nothing_from_shuffled_labels(
    tmp_path: Path, test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = EegDataset.train

    def shuffled(self: EegDataset, client: int) -> Samples:
        own = train(self, client)
        return replace(own, y=np.random.default_rng([self.config.seed, client]).permutation(own.y))

    monkeypatch.setattr(EegDataset, "train", shuffled)
    assert np.mean([real(tmp_path, test_data, seed) for seed in (1, 2, 3)]) < 0.60


def test_what_is_lost_of_the_data_is_a_warning_of_the_run(tmp_path: Path) -> None:
    """A class that one subject lacks, and trials across a splice, of two subjects alike."""
    for seed, name in enumerate(("a", "b", "c")):
        raw = make_raw(seed=seed, labels=("T1", "T2x" if name == "c" else "T2") * 5)
        raw.annotations.append(11.0, 0.0, "boundary")
        save(raw, tmp_path / "data" / name / "x_raw.fif")
    words = [f"'{word}'" if "{" in word else word for word in recorded(tmp_path / "data")]
    summary = run_in_process(tmp_path / "run", *words)
    assert "subject c: no trial of class right_hand (T2); its annotations: T1, T2x, boundary" in summary["warnings"]
    assert "subject a: a/x_raw.fif: 1 of 10 trials dropped (across a splice)" in summary["warnings"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"] == summary["warnings"]
