"""A trained model on new samples: as the run scored it, and what does not fit is refused by name."""

import csv
import functools
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import mne
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.special import softmax

from app.config.compose import load
from app.data.eeg.dataset import EegDataset, eeg_dataset
from app.data.images.dataset import image_dataset
from app.geometry import covariances
from app.tools.predict import load_model
from scripts import predict as script
from tests.eeg_files import CHANNELS, make_raw, save
from tests.running import rounds, run_in_process

EEG = ("experiment=eeg_folder", "'data.events={left_hand: T1, right_hand: T2}'", "data.window=[0,2]")


def predictions(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[list[dict[str, str]], str]:
    """The rows that the command writes as csv, and what it says beside."""
    assert script.main([*map(str, arguments), "--format", "csv"]) == 0
    said = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(said.out))), said.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that the command refuses with."""
    assert script.main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


# --- images and embeddings ---


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    run_in_process(folder, "federation.rounds=2", "training.epochs=1")
    return folder


def test_images_and_their_embeddings_score_as_the_run_did(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = image_dataset(load((f"run_dir={digits}",)))
    test = dataset.split.test
    assert dataset.source.images is not None
    for row in test:
        dataset.source.images[int(row)].save(tmp_path / f"{row:04d}.png")
    np.save(tmp_path / "test.npy", 3 * dataset.features(test))  # lengths are normalised away
    model = digits / "model-final.safetensors"
    images, _ = predictions(capsys, model, tmp_path)
    embedded, note = predictions(capsys, model, tmp_path / "test.npy")
    assert [row["sample"] for row in images] == [f"{row:04d}.png" for row in sorted(test)]
    true = dataset.source.labels[test]
    correct = np.mean([int(row["prediction"]) == label for row, label in zip(embedded, true, strict=True)])
    assert math.isclose(correct, rounds(digits)[-1]["accuracy"])
    by_name = {row["sample"]: row["prediction"] for row in images}
    assert [by_name[f"{row:04d}.png"] for row in test] == [row["prediction"] for row in embedded]
    assert "normalised: l2" in note


def test_probabilities_are_the_softmax_of_the_logits(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    np.savez(tmp_path / "two.npz", north_X=x[:3], south_X=x[3:], north_y=[0, 1, 2])
    told, _ = predictions(capsys, digits / "model-best.safetensors", tmp_path / "two.npz")
    weights = load_file(digits / "model-best.safetensors")
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = softmax(unit @ weights["linear.weight"].numpy().T + weights["linear.bias"].numpy(), axis=1)
    got = np.array([[float(row[f"p({digit})"]) for digit in range(10)] for row in told])
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert [row["sample"] for row in told] == ["north 0", "north 1", "north 2", "south 0"]
    assert [float(row["probability"]) for row in told] == pytest.approx(expected.max(axis=1))


def test_a_table_for_people_and_a_file(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (8, 8), 200).save(tmp_path / "grey.png")
    model = digits / "model-final.safetensors"
    assert script.main([str(model), str(tmp_path / "grey.png")]) == 0
    assert "grey.png" in capsys.readouterr().out
    words = [str(model), str(tmp_path / "grey.png"), "--format", "csv", "--out", str(tmp_path / "p.csv")]
    assert script.main(words) == 0
    assert (tmp_path / "p.csv").read_text().startswith("sample,prediction,probability,p(0),")


def test_what_does_not_fit_is_refused_by_name(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = digits / "model-final.safetensors"
    np.save(tmp_path / "short.npy", np.ones((3, 10), np.float32))
    np.save(tmp_path / "labels.npy", np.arange(3))
    np.savez(tmp_path / "nameless.npz", features=np.ones((3, 64)))
    (tmp_path / "nan.npy").write_bytes(b"")
    bad = np.ones((3, 64), np.float32)
    bad[1, 5] = np.nan
    np.save(tmp_path / "holes.npy", bad)
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY torn")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("short.npy", "dimension 10, model-final.safetensors reads 64 (pixels)"),
        ("labels.npy", "not embeddings (n, p)"),
        ("nameless.npz", "has the arrays features, but none called X or <domain>_X"),
        ("holes.npy", "row 1"),
        ("torn.npy", "not a readable array file"),
        ("notes.txt", "no image, embeddings or recording by its name"),
        ("empty", "no image, embeddings or recording by its name"),
        ("nowhere", "no such file or folder"),
    ):
        assert message in refused(capsys, model, tmp_path / name)
    raw = save(make_raw(), tmp_path / "anna" / "session.edf")
    assert "reads embeddings of images" in refused(capsys, model, raw)


def test_an_encoder_that_differs_is_refused(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = digits / "model-final.safetensors"
    described = json.loads(metadata(model)["fedgeo"])
    described["facts"]["encoder"] = "0123456789abcdef" * 4
    save_file(load_file(model), tmp_path / "m.safetensors", {"fedgeo": json.dumps(described)})
    Image.new("L", (8, 8)).save(tmp_path / "grey.png")
    assert "trained with 0123456789ab" in refused(capsys, tmp_path / "m.safetensors", tmp_path / "grey.png")


def test_a_file_that_is_no_model_is_refused(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 64), np.float32))
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    model = digits / "model-final.safetensors"
    save_file({"linear.weight": load_file(model)["linear.weight"]}, tmp_path / "half.safetensors", metadata(model))
    for name, message in (
        ("other.safetensors", "its metadata do not say what it is"),
        ("text.safetensors", "not a readable safetensors file"),
        ("half.safetensors", "do not fit what its metadata say"),
        ("none.safetensors", "no such file"),
    ):
        assert message in refused(capsys, tmp_path / name, tmp_path / "x.npy")


def test_images_for_a_model_of_embeddings_made_elsewhere_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", a_X=rng.normal(size=(90, 5)), a_y=np.arange(90) % 3)
    words = ("data=features", f"data.path={tmp_path / 'f.npz'}", "federation.clients=2", "federation.rounds=1")
    run_in_process(tmp_path / "run", *words, "federation.beta=5.0")
    Image.new("L", (8, 8)).save(tmp_path / "grey.png")
    model = tmp_path / "run" / "model-final.safetensors"
    assert "was trained on embeddings that were made elsewhere" in refused(capsys, model, tmp_path / "grey.png")
    told, _ = predictions(capsys, model, tmp_path / "f.npz")
    assert len(told) == 90


# --- EEG ---


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for seed, subject in enumerate(("anna", "ben", "cleo")):
        save(make_raw(seed=seed), folder / subject / "session_raw.fif")
    return folder


MODELS = {
    "spdnet": ("model.hidden=[3]",),
    "plain": ("model.hidden=[3]", "model.epsilon=1.0", "covariances.recentre=false"),
    "eegnet": ("model=eegnet", "method=fedavg"),
    "tangent": ("method=tangent_lr",),
    "mdm": ("method=mdm",),
}


@pytest.fixture(scope="module")
def eeg(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The trained model of each kind, trained once."""
    folder = tmp_path_factory.mktemp("eeg")

    @functools.cache
    def model(name: str) -> Path:
        words = (f"data.path={recordings}", "federation.rounds=2", f"cache_dir={folder / 'cache'}", *MODELS[name])
        run_in_process(folder / name, *EEG, *words)
        return folder / name / "model-final.safetensors"

    return model


@pytest.mark.parametrize("name", ["spdnet", "plain", "tangent", "mdm"])
def test_recordings_are_processed_as_in_training(
    eeg: Callable[[str], Path], recordings: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Against the model on covariances computed here, from trials as the training data were read."""
    told, notes = predictions(capsys, eeg(name), recordings)
    words = [*EEG, f"data.path={recordings}", "method=projavg"]
    dataset = eeg_dataset(load(" ".join(words)))
    assert isinstance(dataset, EegDataset)
    trained = load_model(eeg(name))
    expected = []
    for trials in dataset.trials:
        found = covariances.covariances(trials.trials, "oas")  # the preset's estimator
        x = found if name == "plain" else covariances.recentre(found)
        with torch.no_grad():
            expected.append(softmax(trained.model(torch.from_numpy(x)).logits.numpy(), axis=1))
    got = [[float(row["p(left_hand)"]), float(row["p(right_hand)"])] for row in told]
    np.testing.assert_allclose(got, np.concatenate(expected), atol=1e-12)
    assert [row["sample"] for row in told][:2] == ["anna/session_raw.fif trial 1", "anna/session_raw.fif trial 2"]
    assert ("recentred by the mean of its own 10 trials, without labels" in notes) == (name != "plain")


def test_eegnet_takes_its_statistics_from_the_new_trials(
    eeg: Callable[[str], Path], recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = eeg("eegnet")
    told, notes = predictions(capsys, model, recordings)
    assert len(told) == 30 and "batch-norm statistics are those of its own 10 trials, without labels" in notes
    alone, _ = predictions(capsys, model, recordings / "ben" / "session_raw.fif")
    both = [row for row in told if row["sample"].startswith("ben/")]
    assert [row["p(left_hand)"] for row in alone] == [row["p(left_hand)"] for row in both]


def test_other_events_and_windows_begin_trials_too(
    eeg: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlabelled recordings have one kind of event, or none."""
    raw = make_raw(labels=["go"] * 10, seed=1)
    path = save(raw, tmp_path / "dora" / "session_raw.fif")
    model = eeg("spdnet")
    said = refused(capsys, model, path)
    assert "none of the annotations ['T1', 'T2']" in said and "it has ['go']" in said
    told, _ = predictions(capsys, model, path, "--events", "go")
    assert len(told) == 10
    windows, _ = predictions(capsys, model, path, "--windows", "2", "2")
    assert len(windows) == 22
    same = save(make_raw(seed=1), tmp_path / "emil" / "session_raw.fif")
    known, _ = predictions(capsys, model, same)
    assert [row["p(left_hand)"] for row in known] == [row["p(left_hand)"] for row in told]


def test_a_recording_that_does_not_fit_is_refused_by_name(
    eeg: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = eeg("spdnet")
    few = save(make_raw(channels=CHANNELS[:3]), tmp_path / "few" / "a_raw.fif")
    said = refused(capsys, model, few)
    assert "no channel Oz, which model-final.safetensors reads (4 channels: C3, C4, Fp1, Oz)" in said
    slow = save(make_raw(rate=128.0), tmp_path / "slow" / "a_raw.fif")
    assert "sampled at 128 Hz, model-final.safetensors reads 160 Hz" in refused(capsys, model, slow)
    told, _ = predictions(capsys, model, slow, "--resample")
    assert len(told) == 10
    volts = make_raw()
    volts.apply_function(lambda x: 1e6 * x)
    assert "unit" in refused(capsys, model, save(volts, tmp_path / "unit" / "a_raw.fif"))
    one = make_raw(labels=["T1"], onsets=[2])
    assert "one trial" in refused(capsys, model, save(one, tmp_path / "one" / "a_raw.fif"))
    average = make_raw().set_eeg_reference("average", verbose="ERROR")
    assert "re-reference the recording" in refused(capsys, model, save(average, tmp_path / "average" / "a_raw.fif"))
    Image.new("L", (8, 8)).save(tmp_path / "grey.png")
    assert "reads EEG of 4 channels" in refused(capsys, model, tmp_path / "grey.png")
    assert isinstance(average, mne.io.BaseRaw)
