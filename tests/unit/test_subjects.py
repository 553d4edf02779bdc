"""The data set of EEG: who holds which subjects, what is held out, and that nothing of it reaches the training."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pyriemann.geometry.mean import mean_riemann

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.eeg.dataset import EegDataset, eeg_dataset
from app.data.federated_dataset import Samples, federated_dataset
from app.data.pooled_dataset import PooledDataset
from app.data.source import TEST, TRAIN, VAL
from app.geometry import covariances
from tests.eeg_files import make_raw, save

SIMULATED = ("experiment=eeg_demo", "data.subjects=5", "data.trials_per_class=10")
EVENTS = "data.events={left_hand: T1, right_hand: T2}"


def simulated(*overrides: str) -> EegDataset:
    return eeg_dataset(load([*SIMULATED, *overrides]))


def folder(path: Path, *overrides: str) -> EegDataset:
    return eeg_dataset(load(["experiment=eeg_folder", f"data.path={path}", EVENTS, "model.hidden=[2]", *overrides]))


def every(found: EegDataset, part: str) -> list[Samples]:
    return [found.train(k) if part == "train" else found.held_out(part, k) for k in range(len(found))]


def rows(samples: Sequence[Samples]) -> set[bytes]:
    return {x.tobytes() for own in samples for x in own.x}


def test_two_subjects_a_client_and_the_last_may_hold_one() -> None:
    found = simulated()
    assert [[found.domains[s] for s in own] for own in found.members] == [
        ["simulated-1", "simulated-2"],
        ["simulated-3", "simulated-4"],
        ["simulated-5"],
    ]
    assert [found.client_domain(k) for k in range(3)] == [None, None, "simulated-5"]
    assert len(simulated("federation.subjects_per_client=1")) == 5
    assert [len(own) for own in simulated("federation.clients=2").members] == [3, 2]
    with pytest.raises(FedgeoError, match="federation.clients=6: 5 subjects allow at most as many"):
        simulated("federation.clients=6")


def test_each_subject_is_split_by_itself_and_no_trial_is_on_two_sides() -> None:
    found = simulated()
    parts = {part: every(found, part) for part in ("train", "val", "test")}
    kept = {part: rows(samples) for part, samples in parts.items()}
    assert sum(map(len, kept.values())) == len(set.union(*kept.values())) == 5 * 20
    for subject in range(5):
        assert [int((found.split[subject] == part).sum()) for part in (TRAIN, VAL, TEST)] == [15, 2, 3]
    for part, samples in parts.items():
        assert {int(d) for own in samples for d in own.domain} == set(range(5)), part
        assert all(own.x.dtype == np.float64 and own.x.shape[1:] == (22, 22) for own in samples)


def test_labels_stay_with_their_trials() -> None:
    found = simulated("covariances.recentre=false")
    of_trial = {
        covariance.tobytes(): int(label)
        for trials in found.trials
        for covariance, label in zip(covariances.covariances(trials.trials), trials.labels, strict=True)
    }
    for part in ("train", "val", "test"):
        for own in every(found, part):
            assert [of_trial[x.tobytes()] for x in own.x] == own.y.tolist()


def test_recentring_looks_at_training_trials_only() -> None:
    """The mean of each subject's training covariances becomes the identity; whatever the others are."""
    found = simulated()
    for k in range(len(found)):
        own = found.train(k)
        for subject in np.unique(own.domain):
            assert np.allclose(mean_riemann(own.x[own.domain == subject]), np.eye(22), atol=1e-6)
    held_out = np.concatenate([own.x for own in every(found, "test")])
    assert not np.allclose(mean_riemann(held_out), np.eye(22), atol=1e-2)


def test_what_is_held_out_cannot_change_what_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [own.x.copy() for own in every(simulated(), "train")]
    real = covariances.covariances

    def spoilt(trials: np.ndarray, estimator: str = "scm") -> np.ndarray:
        result = real(trials, estimator)
        subject = next(i for i, t in enumerate(other.trials) if t.trials is trials)
        result[other.split[subject] != TRAIN] *= 50
        return result

    other = EegDataset(**{k: v for k, v in vars(simulated()).items() if k != "_inputs"})
    monkeypatch.setattr(covariances, "covariances", spoilt)
    after = every(other, "train")
    assert all(np.array_equal(a, b.x) for a, b in zip(before, after, strict=True))
    assert max(np.abs(own.x).max() for own in every(other, "test")) > 50


def test_a_model_of_trials_reads_z_scores_and_a_fitted_method_covariances_whatever_the_model() -> None:
    eegnet = ("method=fedavg", "model=eegnet")
    own = simulated(*eegnet).train(0)
    assert own.x.dtype == np.float32 and own.x.shape[1:] == (22, 384)
    assert np.allclose(own.x.mean(-1), 0, atol=1e-5) and np.allclose(own.x.std(-1), 1, atol=1e-4)
    assert simulated("model=eegnet", "method=mdm").train(0).x.shape[1:] == (22, 22)


def test_subjects_left_out_are_held_by_the_server_and_by_no_client() -> None:
    found = simulated("data.split=leave_subjects_out", "data.test_fraction=0.4", "data.val_fraction=0.2")
    assert found.central and {part: len(own) for part, own in found.left_out.items()} == {"val": 1, "test": 2}
    clients = {s for own in found.members for s in own}
    assert clients | {*found.left_out["val"], *found.left_out["test"]} == set(range(5))
    assert len(clients) == 2
    held = {part: set(found.held_out(part, None).domain.tolist()) for part in ("val", "test")}
    assert held == {part: set(own) for part, own in found.left_out.items()}
    assert {int(d) for k in range(len(found)) for d in found.train(k).domain} == clients
    assert sum(len(found.train(k)) for k in range(len(found))) == 2 * 20  # whole subjects
    own = found.held_out("test", None)
    for subject in found.left_out["test"]:  # a new subject has no training trials: all its own, without labels
        assert np.allclose(mean_riemann(own.x[own.domain == subject]), np.eye(22), atol=1e-6)


def test_another_seed_splits_otherwise() -> None:
    first, second = (simulated(f"seed={s}", "data.split=leave_subjects_out") for s in (1, 2))
    again = simulated("seed=1", "data.split=leave_subjects_out")
    assert first.left_out == again.left_out
    assert first.left_out != second.left_out


def test_gathered_holds_all_training_trials_once() -> None:
    gathered, apart = federated_dataset(load([*SIMULATED, "method=centralised"])), simulated()
    assert isinstance(gathered, PooledDataset) and len(gathered) == 1
    for part in ("train", "val", "test"):
        own = gathered.train(0) if part == "train" else gathered.held_out(part, 0)
        assert rows([own]) == rows(every(apart, part))
        assert np.array_equal(np.unique(own.domain), np.arange(5))
    assert gathered.facts(0) == apart.facts(0)


def test_facts_are_what_recordings_must_have_alike() -> None:
    facts = simulated("covariances.estimator=oas").facts(1)
    assert facts == {
        "channels": [f"E{i}" for i in range(1, 23)],
        "sampling rate": 128.0,
        "samples a trial": 384,
        "unit": "microvolt",
        "filter": [8.0, 32.0],
        "window": [0.0, 3.0],
        "average reference": False,
        "covariance estimator": "oas",
        "recentring": True,
    }
    json.dumps(facts)  # they travel as text


def test_the_partition_names_subjects_and_what_was_noted(tmp_path: Path) -> None:
    save(make_raw(seed=1), tmp_path / "a" / "x_raw.fif")
    save(make_raw(seed=2, labels=("T1",) * 10), tmp_path / "b" / "x_raw.fif")
    found = folder(tmp_path)
    told = json.loads(found.partition_json())
    assert told["clients"][0]["subjects"] == ["a", "b"]
    assert told["clients"][0]["split"] == [part.tolist() for part in found.split]
    assert told["notes"] == {"b": ["no trial of class right_hand (T2); its annotations: T1"]}
    assert found.notes == ("subject b: no trial of class right_hand (T2); its annotations: T1",)
    assert np.bincount(found.train(0).y, minlength=2)[1] < np.bincount(found.train(0).y)[0]


def test_a_class_that_no_subject_has_is_refused_by_its_annotation_except_at_a_site(tmp_path: Path) -> None:
    for seed, subject in enumerate(("a", "b")):
        save(make_raw(labels=("T1",) * 10, seed=seed), tmp_path / subject / "x_raw.fif")
    with pytest.raises(FedgeoError, match=r"data.events: no recording has a trial of class right_hand \(T2\)"):
        folder(tmp_path)
    assert len(folder(tmp_path, "engine=deployment")) == 1  # another site may have it


def test_an_average_reference_cannot_be_recentred_into_full_rank_but_is_kept(tmp_path: Path) -> None:
    for seed, subject in enumerate(("a", "b"), 3):
        raw = make_raw(seed=seed).set_eeg_reference("average", verbose="ERROR")
        save(raw, tmp_path / subject / "x_raw.fif")
    found = folder(tmp_path, "covariances.estimator=scm")
    assert found.facts(0)["average reference"] is True
    values = np.linalg.eigvalsh(found.train(0).x)
    assert values[:, 0].max() < 1e-6 and values[:, 1].min() > 1e-2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("covariances.estimator=magic",), "covariances.estimator=magic: must be one of scm, oas"),
        (("data.val_fraction=0.6", "data.test_fraction=0.6"), "subject simulated-1: the fractions"),
        (("data.split=leave_subjects_out", "data.subjects=1"), "of 1 subjects"),
        (("data=eeg_folder", EVENTS), "data.path is not set: eeg_folder needs the folder of your recordings"),
        (("data=eeg_folder", EVENTS, "data.path=/nowhere"), "data.path=/nowhere"),
        (("data=eeg_bids", EVENTS, "data.path=/nowhere"), "data.task and data.events are needed"),
        (("data=physionetmi", "data.subjects=3"), r"data.subjects=3: give a list of subjects, such as \[3\]"),
    ],
)
def test_faults_name_their_key_or_subject(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(FedgeoError, match=message) as caught:
        eeg_dataset(load(["experiment=eeg_demo", *overrides]))
    assert "\n" not in str(caught.value)
