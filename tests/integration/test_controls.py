"""The controls on images: all samples in one place, and every client alone."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from app.algorithms.base import Local
from app.algorithms.fedavg import FedAvg
from app.augmentation.augmented_set import AugmentedSet
from app.common.seeds import SHUFFLE, generator
from app.config.compose import load
from app.data.federated_dataset import federated_dataset
from app.data.images.dataset import ImageDataset, image_dataset
from app.models.base import Weights
from app.models.linear import Head
from app.training.plain import LocalSettings, predict, train
from tests.running import rounds, run_in_process

PLAIN = ("training.lr=0.1", "training=plain", "augmentation=none", "federation.rounds=3", "training.epochs=2")


def alone(own: ImageDataset, client: int, number: int, start: Weights, epochs: int) -> Weights:
    """What ``client`` makes of ``start`` in round ``number``."""
    samples = own.train(client)
    data = AugmentedSet(samples.x, samples.y, classes=10, seed=1, client=client)
    settings = LocalSettings(epochs, 64, "sgd", 0.1, 0.9, 1e-5)
    model = Head(64, 10)
    return train(model, data, FedAvg(), Local(start), settings, generator(1, SHUFFLE, client, number)).weights


def accuracy(own: ImageDataset, weights: Weights) -> float:
    model = Head(64, 10)
    model.load(weights)
    test = own.held_out("test", None)
    return float(np.mean(predict(model, test.x).argmax(1) == test.y))


def test_local_is_every_client_s_own_training_scored_on_the_common_test_set(tmp_path: Path) -> None:
    summary = run_in_process(tmp_path / "run", *PLAIN, "method=local", nodes=3)
    own = image_dataset(load(" ".join((*PLAIN, "method=local"))))
    fresh = Head(64, 10)
    fresh.reset(torch.Generator())
    models = {k: fresh.export() for k in range(10)}
    lines = rounds(tmp_path / "run")
    for number, line in enumerate(lines, start=1):
        models = {k: alone(own, k, number, weights, epochs=2) for k, weights in models.items()}
        scores = [accuracy(own, models[k]) for k in range(10)]
        assert list(line["accuracy_by_client"].values()) == pytest.approx(scores)
        assert line["accuracy"] == pytest.approx(np.mean(scores))
        assert line["bytes_down"] == 0
    means = {k: math.fsum(line["accuracy_by_client"][k] for line in lines) / 3 for k in map(str, range(10))}
    assert summary["by_client"] == pytest.approx(means)
    assert summary["final"] == pytest.approx(np.mean(list(means.values())))


def test_local_clients_that_skip_rounds_keep_their_models(tmp_path: Path) -> None:
    options = (*PLAIN, "method=local", "federation.participation=0.3", "federation.rounds=4")
    run_in_process(tmp_path / "run", *options)
    lines = rounds(tmp_path / "run")
    for number, (before, after) in enumerate(pairwise(lines), start=2):
        drawn = set(np.random.default_rng([1, number]).choice(10, size=3, replace=False).tolist())
        unchanged = {
            int(k) for k, score in after["accuracy_by_client"].items() if score == before["accuracy_by_client"][k]
        }
        assert unchanged >= set(range(10)) - drawn


def test_centralised_holds_every_training_sample_once() -> None:
    gathered, apart = (federated_dataset(load(" ".join((*PLAIN, f"method={m}")))) for m in ("centralised", "fedavg"))
    assert len(gathered) == 1
    every = np.concatenate([apart.train(k).x for k in range(10)])
    assert np.array_equal(gathered.train(0).x, every)
    assert np.array_equal(gathered.held_out("test", None).y, apart.held_out("test", None).y)


def test_centralised_is_plain_training_on_the_pooled_samples(tmp_path: Path) -> None:
    """Its first round is one epoch of SGD over all samples; the rest goes on with the momentum."""
    run_in_process(tmp_path / "run", *PLAIN, "method=centralised")
    lines = rounds(tmp_path / "run")
    assert [line["clients"] for line in lines] == [1] * 6  # rounds x epochs
    own = federated_dataset(load(" ".join((*PLAIN, "method=centralised"))))
    fresh = Head(64, 10)
    fresh.reset(torch.Generator())
    assert lines[0]["accuracy"] == pytest.approx(accuracy(own, alone(own, 0, 1, fresh.export(), epochs=1)))  # type: ignore[arg-type]


@pytest.mark.slow
def test_pooled_training_bounds_federation_and_that_bounds_being_alone(tmp_path: Path) -> None:
    options = ("augmentation=none", "federation.rounds=10", "training.lr=0.1")
    methods = ("centralised", "fedavg", "local")
    final = {m: run_in_process(tmp_path / m, *options, f"method={m}")["final"] for m in methods}
    assert final["centralised"] > final["fedavg"] + 0.2
    assert final["fedavg"] > final["local"] + 0.02


def test_both_controls_may_be_augmented(tmp_path: Path) -> None:
    for method in ("centralised", "local"):
        options = ("augmentation=ggeur", "augmentation.target=150", "federation.rounds=1")
        summary = run_in_process(tmp_path / method, f"method={method}", *options)
        assert summary["added_samples"] > 0
