"""Attacks on what is sent, in both directions: each has a sample back under privacy=research, none under site.

Through the real client and server code in this process. Client 0 has one sample of class 2; client 1 has two of class
3; client 2 alone has 30 of class 4, few enough (n <= p) that their span is an exact test of membership; client 3 has
one sample in all.
"""

from pathlib import Path

import numpy as np
import pytest

from app import messages
from app.common.errors import FedgeoError
from app.geometry.class_geometry import Geometry
from app.geometry.class_statistics import ClassStatistics
from tests.transcript import Transcript, leak_and_stop, transcript

P, CLASSES = 64, 5
HELD = {0: {0: 60, 1: 60, 2: 1}, 1: {0: 60, 1: 60, 3: 2}, 2: {0: 60, 1: 60, 4: 30}, 3: {0: 1}}
CLOSE = 1e-4  # of the largest entry: what went through float32 on its way

RESEARCH, SITE = ("privacy=research",), ("privacy=site",)


def clusters(rng: np.random.Generator, label: int, n: int) -> np.ndarray:
    """n samples of a class, (n, p) float32."""
    centre = np.random.default_rng(100 + label).normal(size=P)
    return (centre + rng.normal(size=(n, P))).astype(np.float32)


@pytest.fixture(scope="module")
def held() -> dict[int, dict[int, np.ndarray]]:
    """Each client's training samples by class."""
    rng = np.random.default_rng(0)
    return {k: {label: clusters(rng, label, n) for label, n in own.items()} for k, own in HELD.items()}


@pytest.fixture(scope="module")
def options(held: dict[int, dict[int, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A domain a client, a test sample of every class in each."""
    rng, arrays = np.random.default_rng(1), {"classes": np.array([f"c{label}" for label in range(CLASSES)])}
    for client, own in held.items():
        test = np.concatenate([clusters(rng, label, 2) for label in range(CLASSES)])
        arrays[f"d{client}_X"] = np.concatenate([*own.values(), test])
        labels = [np.full(len(x), label) for label, x in own.items()]
        arrays[f"d{client}_y"] = np.concatenate([*labels, np.repeat(np.arange(CLASSES), 2)])
        arrays[f"d{client}_split"] = np.repeat([0, 2], [sum(map(len, own.values())), len(test)])
    path = tmp_path_factory.mktemp("held") / "held.npz"
    np.savez(path, **arrays)
    return (
        *("experiment=quickstart", "data=features", f"data.path={path}", "data.val_fraction=0"),
        *("encoder.normalise=none", "federation.partition=domain", "federation.clients=null"),
        *("federation.rounds=1", "training.epochs=1"),
        *("augmentation.target=40", "training.batch_size=500", "training.momentum=0"),
    )


def equal(found: np.ndarray, sample: np.ndarray) -> bool:
    return bool(np.abs(found - sample).max() < CLOSE * np.abs(sample).max())


def told_of(said: Transcript, client: int) -> ClassStatistics:
    return ClassStatistics.from_arrays(said.one(messages.STATISTICS, client).said)


STATISTICS = {  # all that share class statistics
    "ggeur": ("augmentation=ggeur",),
    "shift": ("augmentation=shift",),
    "lda": ("method=lda", "augmentation=none"),
    "ridge": ("method=ridge", "augmentation=none"),
    "means_only": ("method=means_only", "augmentation=none"),
    "ccvr": ("method=ccvr", "augmentation=none"),
    "init": ("augmentation=none", "model.init=lda"),
}


@pytest.mark.parametrize("words", STATISTICS.values(), ids=STATISTICS)
def test_the_mean_of_one_sample_is_the_sample(
    words: tuple[str, ...], options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    leak, stop = leak_and_stop(tmp_path, *options, *words)
    found = told_of(leak, 0)
    row = found.row_of(2)
    assert row is not None and found.counts[row] == 1 and equal(found.means[row], held[0][2][0])
    for client in (0, 1, 2):
        assert set(told_of(stop, client).classes) <= {0, 1, 4}
        assert set(told_of(stop, client).counts % 10) == {0}
    assert not list(stop.of(messages.STATISTICS, 3))  # with one sample it has nothing to say


@pytest.mark.parametrize("words", [STATISTICS[name] for name in ("ggeur", "lda", "ridge", "ccvr", "init")])
def test_two_samples_are_their_mean_and_root_eigenvalue(
    words: tuple[str, ...], options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    leak, stop = leak_and_stop(tmp_path, *options, *words)
    found = told_of(leak, 1)
    row = found.row_of(3)
    assert row is not None
    factor = found.factor(row)
    assert factor is not None and factor.shape == (1, P)
    back = np.stack([found.means[row] - factor[0], found.means[row] + factor[0]])
    assert any(all(map(equal, back[order], held[1][3])) for order in ([0, 1], [1, 0]))
    assert told_of(stop, 1).row_of(3) is None


def residual(sent: Geometry, label: int, x: np.ndarray) -> float:
    """How much of x - mean lies outside the span of the class's shape, 0..1."""
    row = sent.row_of(label)
    assert row is not None
    offset = x - sent.means[row]
    vectors = sent.shapes[row].eigenvectors
    return float(np.linalg.norm(offset - vectors @ (vectors.T @ offset)) / np.linalg.norm(offset))


def test_the_shape_of_few_samples_tells_who_is_a_member(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    """What the paper's Appendix D takes for safe: covariances of a class. Every client is sent this."""
    words = ("augmentation=ggeur", "augmentation.explained=1.0")
    leak, stop = leak_and_stop(tmp_path, *options, *words)
    stranger = clusters(np.random.default_rng(7), 4, 1)[0]
    sent = Geometry.from_arrays(leak.one(messages.GEOMETRY, 0).asked)
    assert max(residual(sent, 4, x) for x in held[2][4]) < 1e-4 < 0.5 < residual(sent, 4, stranger)
    bound = Geometry.from_arrays(stop.one(messages.GEOMETRY, 0).asked)
    assert set(bound.classes) == {0, 1}
    members = [residual(bound, 0, x) for k in (0, 1, 2) for x in held[k][0]]
    strangers = [residual(bound, 0, x) for x in clusters(np.random.default_rng(8), 0, 50)]
    assert max(shape.rank for shape in bound.shapes) <= 45 and np.mean(members) > 0.5 * np.mean(strangers)


def test_prototypes_are_samples_that_everybody_is_sent(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    words = ("augmentation=ggeur", "augmentation.step2=true")
    leak = transcript(tmp_path / "research", *options, *words, *RESEARCH)
    sent = Geometry.from_arrays(leak.one(messages.GEOMETRY, 1).asked)
    assert any(equal(mean, held[0][2][0]) for mean in sent.prototype_means)
    with pytest.raises(FedgeoError, match=r"privacy\.prototypes=false"):
        transcript(tmp_path / "site", *options, *words, *SITE)
    allowed = transcript(tmp_path / "allowed", *options, *words, *SITE, "privacy.prototypes=true")
    bound = Geometry.from_arrays(allowed.one(messages.GEOMETRY, 1).asked)
    assert set(bound.prototype_classes) == {0, 1}


def test_a_class_of_one_domain_is_its_centre_and_shift(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    """m_c + delta_d is the mean of a class that one domain alone holds: everybody is sent both."""
    words = STATISTICS["shift"]
    leak, stop = leak_and_stop(tmp_path, *options, *words)
    sent = leak.one(messages.GEOMETRY, 1).asked
    back = sent["means"][list(sent["classes"]).index(2)] + sent["deltas"][sent["domains"][0]]
    assert equal(back, held[0][2][0])
    assert set(stop.one(messages.GEOMETRY, 1).asked["classes"]) == {0, 1}


def test_batch_means_of_one_sample_are_the_sample(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    words = ("augmentation=fedmix",)
    leak = transcript(tmp_path / "research", *options, *words, *RESEARCH)
    assert equal(leak.one(messages.STATISTICS, 3).said["means"][0], held[3][0][0])
    assert any(equal(mean, held[3][0][0]) for mean in leak.one(messages.GEOMETRY, 0).asked["means"])
    with pytest.raises(FedgeoError, match=r"privacy\.prototypes=false"):
        transcript(tmp_path / "site", *options, *words, *SITE)
    allowed = transcript(tmp_path / "allowed", *options, *words, *SITE, "privacy.prototypes=true")
    assert not list(allowed.of(messages.STATISTICS, 3))
    labels = allowed.one(messages.STATISTICS, 0).said["labels"]
    assert len(labels) == 120 // 16 and not labels[:, 2:].any()


def test_the_prototype_of_one_sample_is_its_representation(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    words = ("method=fedproto", "augmentation=none", "federation.rounds=2")
    leak, stop = leak_and_stop(tmp_path, *options, *words)
    said = leak.one(messages.TRAIN, 0).said
    representation = said["linear.weight"] @ held[0][2][0] + said["linear.bias"]
    assert said["auxiliary/count"].tolist() == [60, 60, 1, 0, 0] and equal(said["auxiliary/sum"][2], representation)
    for line in stop.of(messages.TRAIN):
        assert set(line.said["auxiliary/count"] % 10) == {0} and not line.said["auxiliary/sum"][2:4].any()
    sent = list(stop.of(messages.TRAIN, 0))[-1].asked
    assert sent["auxiliary/known"].tolist() == [1, 1, 0, 0, 0]  # 30 samples of class 4 are not 50
    told = list(leak.of(messages.TRAIN, 0))[-1].asked
    assert told["auxiliary/known"].all()


def change(said: Transcript, client: int) -> tuple[np.ndarray, np.ndarray]:
    """What local training added to (weight, bias)."""
    line = said.one(messages.TRAIN, client)
    weight, bias = (line.said[name] - line.asked[name] for name in ("linear.weight", "linear.bias"))
    return weight.astype(np.float64), bias.astype(np.float64)


def test_the_update_of_one_sample_is_the_sample(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    leak, stop = leak_and_stop(tmp_path, *options, "augmentation=none")
    weight, bias = change(leak, 3)
    assert equal(weight[0] / bias[0], held[3][0][0])
    assert not list(stop.of(messages.TRAIN, 3))


def test_the_update_tells_a_class_of_one_sample_among_many(
    options: tuple[str, ...], held: dict[int, dict[int, np.ndarray]], tmp_path: Path
) -> None:
    """In the first step from zero all rows are pushed alike, but for what a class's own samples add to its row."""
    leak, stop = leak_and_stop(tmp_path, *options, "augmentation=none")

    def attack(said: Transcript) -> np.ndarray:
        weight, bias = change(said, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (weight[2] - weight[3]) / (bias[2] - bias[3])  # client 0 has none of class 3

    assert equal(attack(leak), held[0][2][0])
    weight, bias = change(stop, 0)
    assert np.array_equal(weight[2], weight[3]) and bias[2] == bias[3]  # nothing of class 2 was in it


def test_a_head_does_not_hold_a_class_of_few_samples(options: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("lda", "ridge", "ccvr", "means_only", "init"):
        said = transcript(tmp_path / name, *options, *STATISTICS[name], *SITE)
        assert said.summary["privacy"]["left_out"][-1].startswith("class c4: fewer than 50 in all"), name
