"""What real sites let be heard of their classes: names, scores and errors; the stricter of two policies; the report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import messages
from app.common.errors import FedgeoError
from app.config.privacy import RESEARCH, effective, read_policy, stricter
from app.config.schema import Privacy
from app.data.federated_dataset import Samples
from app.data.policy_view import policy_view
from app.geometry.class_statistics import ClassStatistics
from app.launch.deployment import LocalSite
from tests.sites import audit, own_output, run_over_sites, told
from tests.transcript import Transcript, transcribe, transcript

P = 16
HELD = {"berlin": {"cat": (60, 25), "dog": (60, 25), "yeti": (4, 1)}, "paris": {"cat": (60, 4), "dog": (60, 25)}}
RUN = ("experiment=quickstart", "augmentation=ggeur", "federation.rounds=1", "training.epochs=1")
OPEN = "policy: research\nmin_count: 1\nmin_total: 1\nrank_share: 1.0\nprototypes: true\nround_counts: 1\nstock: true\n"
LISTS = ("releases", "encoders", "targets", "max_hidden", "max_epochs", "max_rounds", "max_size")
OPEN += "".join(f"{key}: null\n" for key in LISTS) + "masked: false\nmin_batch: 1\n"


def sites(folder: Path, policy: str | None = None, held: Any = HELD) -> list[LocalSite]:
    """Embeddings at each site: (training, test) samples by class."""
    made, rng = [], np.random.default_rng(0)
    for name, own in held.items():
        home = folder / name
        home.mkdir(parents=True)
        sizes = [(k, *part) for k, (train, test) in enumerate(own.values()) for part in ((0, train), (2, test))]
        np.savez(
            home / "data.npz",
            classes=np.array(list(own)),
            site_X=np.concatenate([label + rng.normal(size=(n, P)) for label, _, n in sizes]).astype("f4"),
            site_y=np.concatenate([np.full(n, label) for label, _, n in sizes]),
            site_split=np.concatenate([np.full(n, split) for _, split, n in sizes]),
        )
        site = LocalSite(name, home / "data.npz", home)
        if policy is not None:
            (home / "policy.yaml").write_text(policy)
            site = told(site, policy=str(home / "policy.yaml"))
        made.append(site)
    return made


def heard(folder: Path, given: Sequence[LocalSite], *words: str) -> Transcript:
    with pytest.MonkeyPatch.context() as patch:
        said = transcribe(patch)
        said.summary = run_over_sites(folder / "run", given, *RUN, "data.val_fraction=0", *words)
    return said


def test_a_rare_class_is_not_even_named(tmp_path: Path) -> None:
    leak, stop = heard(tmp_path / "a", sites(tmp_path / "a", OPEN)), heard(tmp_path / "b", sites(tmp_path / "b"))
    for said, rare in ((leak, True), (stop, False)):
        hello = messages.read_text(said.one(messages.HELLO, 0).reply)
        assert ("yeti" in hello["classes"]) == rare
        whole = "".join(path.read_text() for path in (tmp_path / "ba"[rare] / "run").glob("*.json*"))
        assert ("yeti" in whole) == rare
    assert "yeti" not in (tmp_path / "b" / "berlin" / "output" / "audit.jsonl").read_text()


def test_what_the_site_alone_calls_a_class_is_left_out_of_its_training(tmp_path: Path) -> None:
    said = heard(tmp_path, sites(tmp_path))
    weight = said.one(messages.TRAIN, 0).said["linear.weight"]
    assert len(weight) == 2  # cat and dog


def test_the_confusion_of_one_sample_is_its_prediction(tmp_path: Path) -> None:
    leak, stop = heard(tmp_path / "a", sites(tmp_path / "a", OPEN)), heard(tmp_path / "b", sites(tmp_path / "b"))
    line = leak.one(messages.EVALUATE, 0)
    x = np.load(tmp_path / "a" / "berlin" / "data.npz")["site_X"][-1]
    guess = int(np.argmax(line.asked["linear.weight"] @ (x / np.linalg.norm(x)) + line.asked["linear.bias"]))
    assert line.said["test.confusion"][0, 2].tolist() == np.eye(3, dtype=int)[guess].tolist()
    berlin, paris = (stop.one(messages.EVALUATE, k).said["test.confusion"][0].sum(axis=1).tolist() for k in (0, 1))
    assert berlin == [20, 20] and paris == [0, 20]  # of 25, 25 and 1; of 4 and 25


def test_scores_are_of_the_samples_that_are_told_of(tmp_path: Path) -> None:
    """In tens at each site; the site itself keeps the score of all its samples."""
    given = sites(tmp_path)
    said = heard(tmp_path, given)
    told_of = sum(line.said["test.confusion"].sum(axis=0) for line in said.of(messages.EVALUATE))
    (row,) = (json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert row["accuracy"] == pytest.approx(np.trace(told_of) / told_of.sum())
    assert not any((line.said["test.confusion"] % 10).any() for line in said.of(messages.EVALUATE))
    own = json.loads((own_output(given[1]) / "scores.jsonl").read_text().splitlines()[-1])["test"]
    assert own["samples"] == 29 and np.sum(own["told"]) == 20


def test_a_site_with_no_class_of_enough_samples_takes_no_part(tmp_path: Path) -> None:
    held = {**HELD, "rome": {"cat": (9, 20), "dog": (3, 0)}}
    given = sites(tmp_path, held=held)
    said = heard(tmp_path, given, "federation.max_failures=0.4")
    assert said.summary["status"] == "completed" and {line.client for line in said} == {0, 1}
    assert "has no class with privacy.min_count=10 training samples" in audit(given[2])[-1]["error"]


@pytest.mark.parametrize("words", [(), ("augmentation=none", "method=lda"), ("augmentation=none", "model.init=ridge")])
def test_nothing_is_asked_that_could_not_be_used(words: tuple[str, ...], tmp_path: Path) -> None:
    """What sites said of their counts tells that no class reaches min_total: no statistic leaves them."""
    given = sites(tmp_path, held={name: {"cat": (20, 20), "dog": (24, 20)} for name in HELD})
    with pytest.raises(FedgeoError, match=r"no class has privacy\.min_total=50 samples"):
        heard(tmp_path, given, *words)
    assert all([line["message"] for line in audit(site)] == ["query.place", "query.hello"] for site in given)


def test_nothing_to_score_is_told_with_its_cause(tmp_path: Path) -> None:
    held = {name: {"cat": (60, 4), "dog": (60, 4)} for name in HELD}
    with pytest.raises(FedgeoError, match=r"privacy\.min_count"):
        heard(tmp_path, sites(tmp_path, held=held))


# --- the stricter of the run's policy and the site's ---

KEYS = {  # key: (loose, strict)
    "policy": ("research", "site"),
    "min_count": (3, 30),
    "min_total": (20, 400),
    "rank_share": (0.9, 0.1),
    "prototypes": (True, False),
    "round_counts": (2, 20),
    "masked": (False, True),
    "stock": (True, False),
    "releases": (9, 2),
    "encoders": (["pixels", "timm"], ["timm"]),
    "targets": (["flwr.serverapp.strategy", "a:b"], ["a:b"]),
    "max_hidden": (100, 0),
    "max_epochs": (30, 3),
    "max_rounds": (300, 3),
    "max_size": (64, 8),
    "min_batch": (2, 32),
}


def test_every_key_of_a_policy_is_tried() -> None:
    assert KEYS.keys() | {"peers"} == Privacy.model_fields.keys()  # whose keys are whose, only a site says


@pytest.mark.parametrize("key", KEYS)
def test_the_stricter_of_run_and_site_wins(key: str, tmp_path: Path) -> None:
    loose, strict = KEYS[key]
    policy = tmp_path / "policy.yaml"
    for site, run in ((loose, strict), (strict, loose)):
        policy.write_text(_with(key, site))
        asked = RESEARCH.model_copy(update={key: run})
        assert getattr(effective(asked, policy), key) == strict
        assert getattr(stricter(read_policy(policy), asked), key) == strict
    assert getattr(effective(RESEARCH, None), key) == getattr(read_policy(None), key)  # site.yaml where it says nothing


def _with(key: str, value: object) -> str:
    """A policy that lets everything through but for one key."""
    lines = [f"{key}: {str(value).lower()}" if line.startswith(f"{key}:") else line for line in OPEN.splitlines()]
    return "\n".join(lines)


WORDS = {
    "min_count": ("privacy.min_count=61", "min_count: 61"),
    "min_total": ("privacy.min_total=130", "min_total: 130"),
    "rank_share": ("privacy.rank_share=0.02", "rank_share: 0.02"),
    "round_counts": ("privacy.round_counts=25", "round_counts: 25"),
}


@pytest.mark.parametrize("by", ["run", "site"])
@pytest.mark.parametrize("key", WORDS)
def test_what_either_forbids_is_not_sent(key: str, by: str, tmp_path: Path) -> None:
    """The first two bounds are such that the third class alone is left out."""
    held = {name: {"cow": (70, 70), "dog": (70, 70), "cat": (60, 70)} for name in HELD}
    run, site = WORDS[key]
    policy = _with(key, site.split(": ")[1]) if by == "site" else OPEN
    said = heard(tmp_path, sites(tmp_path, policy, held), *((run,) if by == "run" else ()))
    statistics = ClassStatistics.from_arrays(said.one(messages.STATISTICS, 0).said)
    sent = said.one(messages.GEOMETRY, 0).asked
    bounds = {
        "min_count": lambda: statistics.classes.tolist() == [0, 1],
        "min_total": lambda: sent["classes"].tolist() == [0, 1],
        "rank_share": lambda: sent["ranks"].tolist() == [2, 2, 2],
        "round_counts": lambda: statistics.counts.tolist() == [50, 50, 50],
    }
    assert bounds[key]()


# --- what is said of it ---


def test_what_was_left_out_is_told_without_how_much(tmp_path: Path) -> None:
    held = {"berlin": {"cat": (60, 25), "dog": (60, 25), "hare": (4, 1)}, "paris": {"cat": (60, 25), "hare": (30, 20)}}
    said = heard(tmp_path, sites(tmp_path, held=held)).summary["privacy"]
    assert said["policy"] == "site" and said["min_count"] == 10
    assert said["left_out"] == [
        "site berlin: fewer than 10 training samples, or none, left out: hare",
        "site paris: fewer than 10 training samples, or none, left out: dog",
        "class hare: fewer than 50 in all: nothing of it is sent to all",
    ]
    assert any("Scores are over the test samples that may be reported" in text for text in said["meaning"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(text in page for text in said["left_out"]) and "privacy=site" in page


def test_research_says_that_there_is_no_bound(tmp_path: Path) -> None:
    said = transcript(tmp_path, *RUN, "privacy=research").summary["privacy"]
    assert said["left_out"] == [] and said["meaning"][0].startswith("There is no bound")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "privacy=research" in page and "There is no bound" in page


# --- what is not prevented, so that the README may not say that it is ---


def test_subtraction_of_two_runs_is_not_prevented(tmp_path: Path) -> None:
    """Rounded counts hide the number; of the few numbers that it can have been, one gives the sample exactly."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(35, P))
    means = [x[:n].mean(axis=0) for n in (34, 35)]
    guesses = [(n + 1) * means[1] - n * means[0] for n in range(30, 40)]
    assert sum(np.allclose(guess, x[34]) for guess in guesses) == 1


class Labels:
    """A data set of one client with these labels to train on and to be tested on."""

    classes, domains, inputs, central = ("a", "b"), ("here",), {"dimension": 1}, False

    def __init__(self, training: Sequence[int], test: Sequence[int]) -> None:
        self.labels = {"train": np.array(training), "test": np.array(test)}

    def train(self, client: int) -> Samples:
        return self.held_out("train", client)

    def held_out(self, part: str, client: int | None) -> Samples:
        y = self.labels[part]
        return Samples(np.arange(len(y), dtype=np.float32)[:, None], y, np.zeros(len(y), dtype=np.int64))


def test_the_same_test_samples_are_told_of_in_every_round_and_drawn_at_random() -> None:
    policy = read_policy(None)
    inner: Any = Labels([0] * 30 + [1] * 9, [0] * 58 + [1] * 30)
    first, again, other = (policy_view(inner, policy, seed).held_out("test", 0) for seed in (1, 1, 2))
    assert len(first) == 50 and set(first.y) == {0}
    assert np.array_equal(first.x, again.x) and not np.array_equal(first.x, other.x)
    assert policy_view(inner, RESEARCH, 1) is inner


def test_a_site_is_scored_on_the_same_samples_whatever_the_order_of_the_classes() -> None:
    """Else a run's federation.classes would draw other samples."""
    policy, found = read_policy(None), []
    for order in (1, -1):
        labels = [0] * 58 + [1] * 37 if order == 1 else [1] * 58 + [0] * 37
        inner: Any = Labels([0] * 30 + [1] * 30, labels)
        inner.classes = ("a", "b")[::order]
        found.append(policy_view(inner, policy, 1, by_name=True).held_out("test", 0).x)
    assert len(found[0]) == 80 and np.array_equal(*found)
