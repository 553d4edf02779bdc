"""Attacks on EEG's sums: a class's only trial is had back under privacy=research, and left out under site."""

from pathlib import Path

import numpy as np
import pytest
import torch

from app import messages
from app.common.errors import FedgeoError
from app.data.eeg.dataset import EegDataset
from app.data.federated_dataset import Samples
from app.geometry.spd import spectral
from tests.transcript import Transcript, leak_and_stop, transcript

RUN = ("experiment=eeg_demo", "data.subjects=4", "data.trials_per_class=80", "federation.rounds=1")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The only trial of class 1 that client 0 has, (c, c), once it is read; its trials of class 0 are as they were."""
    whole, kept = EegDataset.train, list[np.ndarray]()

    def train(self: EegDataset, client: int) -> Samples:
        found = whole(self, client)
        if client != 0:
            return found
        rows = np.r_[np.flatnonzero(found.y == 0), np.flatnonzero(found.y == 1)[:1]]
        kept.append(found.x[rows[-1]])
        return Samples(found.x[rows], found.y[rows], found.domain[rows])

    monkeypatch.setattr(EegDataset, "train", train)
    return kept


def test_the_sum_of_one_trial_is_its_covariance(alone: list[np.ndarray], tmp_path: Path) -> None:
    leak, stop = leak_and_stop(tmp_path, *RUN, "method=mdm")
    said = leak.one(messages.SUMS, 0).said
    assert said["counts"][1] == 1
    np.testing.assert_allclose(said["sums"][1], alone[0], rtol=1e-9)
    for line in stop.of(messages.SUMS, 0):
        assert line.said["counts"][1] == 0 and not line.said["sums"][1].any()
        assert line.said["counts"][0] >= 10 and line.said["counts"][0] % 10 == 0


def trial_of_class_one(said: Transcript) -> np.ndarray:
    """From the first gradient, at weights of zero: a class's row is half of all vectors less its own."""
    tangent = list(said.of(messages.SUMS, 0))
    gradient = next(line for line in tangent if "weight" in line.asked)
    whole_dataset = [line for line in tangent if line.said.keys() == {"sum", "count"}][-1].said["sum"]
    mean = torch.from_numpy(gradient.asked["mean"])
    rows, columns = np.triu_indices(len(mean))
    own = np.zeros(mean.shape)
    own[rows, columns] = -gradient.said["weight"][1] / np.where(rows == columns, 1, np.sqrt(2))
    own = own + np.triu(own, 1).T + whole_dataset / 2
    root = spectral(mean, torch.sqrt)
    return (root @ spectral(torch.from_numpy(own), torch.exp) @ root).numpy()


def test_the_gradient_of_a_class_of_one_trial_is_the_trial(alone: list[np.ndarray], tmp_path: Path) -> None:
    leak, stop = leak_and_stop(tmp_path, *RUN, "method=tangent_lr")
    np.testing.assert_allclose(trial_of_class_one(leak), alone[0], atol=1e-4 * np.abs(alone[0]).max())
    nothing = trial_of_class_one(stop)  # what is left is the mean of all: no vector at all was added
    gradient = next(line for line in stop.of(messages.SUMS, 0) if "weight" in line.asked)
    np.testing.assert_allclose(nothing, gradient.asked["mean"], atol=1e-4 * np.abs(nothing).max())
    assert all(line.said["count"][0] % 10 == 0 for line in stop.of(messages.SUMS, 0) if "count" in line.said)


def test_a_class_of_few_trials_in_all_has_no_mean_to_send(tmp_path: Path) -> None:
    words = (*RUN, "method=mdm", "privacy=site", "privacy.min_total=1000")
    with pytest.raises(FedgeoError, match=r"fewer than privacy\.min_total=1000 trials in all"):
        transcript(tmp_path, *words)
