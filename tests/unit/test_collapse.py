"""What is said of a run that ends no better than chance."""

import math

import numpy as np
import pytest

from app.config.compose import load
from app.server.collapse import advice, signs_of_collapse

CLASSES = ("left", "right")


@pytest.mark.parametrize(
    ("confusion", "loss", "parts"),
    [
        ([[5, 3], [2, 6]], 0.5, []),
        ([[5, 3], [2, 6]], math.log(2), []),
        ([[5, 0], [6, 0]], 0.5, ["predicts class left for all test samples"]),
        ([[0, 5], [0, 6]], 3.0, ["predicts class right", "3.00, is above that of chance among 2 classes, 0.69"]),
        ([[5, 0], [0, 0]], None, []),  # one class is all there is to predict
        ([[5, 3], [2, 6]], None, []),
    ],
)
def test_one_class_alone_and_a_loss_above_chance_are_told(confusion: list, loss: float | None, parts: list) -> None:
    found = signs_of_collapse(np.array(confusion), loss, CLASSES)
    assert len(found) == len(parts) and all(part in sign for part, sign in zip(parts, found, strict=True))


def test_the_advice_names_what_is_set() -> None:
    assert advice(load(["experiment=quickstart", "training.lr=0.5"])).startswith("lower training.lr=0.5")
    assert "covariances.recentre=true" in advice(load(["experiment=eeg_demo", "covariances.recentre=false"]))
    assert "covariances.recentre" not in advice(load(["experiment=eeg_demo"]))


@pytest.mark.parametrize("preset", ["eeg_demo", "eeg_folder"])
def test_the_presets_rate_suits_what_is_not_recentred_too(preset: str) -> None:
    rates = [load([f"experiment={preset}", f"covariances.recentre={value}"]).training.lr for value in ("true", "false")]
    assert rates == [0.01, 0.001]
    assert load([f"experiment={preset}", "covariances.recentre=false", "training.lr=0.02"]).training.lr == 0.02
