"""Scores against scikit-learn and plain loops; what a run reports against counting by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss

from app.common.errors import FedgeoError
from app.training.evaluation import Scores, evaluate, f1_macro, final_and_best, scores_from_confusions

CLASSES = tuple("abcde")
DOMAINS = ("art", "photo", "sketch")


def trial(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and domains; class e has no samples, and domain sketch none either."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    logits = rng.normal(size=(n, 5)) * 3
    logits[np.arange(n), labels] += 2
    return logits, labels, rng.integers(0, 2, n)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@settings(max_examples=50)
@given(n=st.integers(1, 60), seed=st.integers(0, 1000))
def test_scores_agree_with_scikit_learn(n: int, seed: int) -> None:
    logits, labels, domain = trial(n, seed)
    scores = evaluate(logits, labels, domain, DOMAINS, CLASSES)
    predicted = logits.argmax(1)
    assert scores.samples == n
    assert scores.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert scores.loss == pytest.approx(log_loss(labels, softmax(logits), labels=range(5)))
    assert scores.f1_macro == pytest.approx(
        f1_score(labels, predicted, labels=np.unique(labels), average="macro", zero_division=0)
    )
    assert np.array_equal(scores.confusion, confusion_matrix(labels, predicted, labels=range(5)))
    assert scores.confusion.dtype == np.int64


def test_domains_agree_with_a_loop_and_an_empty_one_is_left_out() -> None:
    logits, labels, domain = trial(200, 0)
    scores = evaluate(logits, labels, domain, DOMAINS, CLASSES)
    expected = {}
    for d, name in enumerate(DOMAINS):
        hits = [logits[i].argmax() == labels[i] for i in range(200) if domain[i] == d]
        if hits:
            expected[name] = sum(hits) / len(hits)
    assert scores.accuracy_by_domain == pytest.approx(expected) and list(expected) == ["art", "photo"]
    mean = (expected["art"] + expected["photo"]) / 2
    assert scores.mean_over_domains == pytest.approx(mean)
    assert scores.std_over_domains == pytest.approx(abs(expected["art"] - mean))  # two values, divisor 2
    assert scores.ddof == 0


def test_probabilities_give_the_scores_of_their_logits() -> None:
    logits, labels, domain = trial(50, 1)
    from_logits = evaluate(logits, labels, domain, DOMAINS, CLASSES)
    from_probabilities = evaluate(softmax(logits), labels, domain, DOMAINS, CLASSES, probabilities=True)
    assert from_probabilities.loss == pytest.approx(from_logits.loss)
    assert from_probabilities.accuracy == from_logits.accuracy
    twice = evaluate(softmax(logits), labels, domain, DOMAINS, CLASSES)
    assert abs(twice.loss - from_logits.loss) > 0.1  # a softmax taken twice is another loss


def test_loss_is_finite_for_sure_mistakes() -> None:
    logits = np.array([[1e4, 0.0], [0.0, 1e4]], dtype=np.float32)
    labels, domain = np.array([1, 1]), np.zeros(2, dtype=int)
    assert evaluate(logits, labels, domain, ("one",), ("a", "b")).loss == pytest.approx(5000)
    wrong = np.array([[1.0, 0.0], [0.0, 1.0]])
    certain = evaluate(wrong, labels, domain, ("one",), ("a", "b"), probabilities=True)
    assert math.isfinite(certain.loss) and certain.loss > 300


def test_f1_by_hand() -> None:
    # a: 3 of 4 right, 1 wrong guess, F1 = 6 / (4 + 4). b: 1 of 2 right, F1 = 2 / (2 + 2). c: no samples.
    assert f1_macro(np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]])) == pytest.approx((0.75 + 0.5) / 2)


def test_row_holds_what_a_line_of_rounds_needs() -> None:
    scores = evaluate(*trial(50, 1), DOMAINS, CLASSES)
    row = scores.row("val_")
    assert row["val_accuracy"] == scores.accuracy and row["val_accuracy_by_domain"] == scores.accuracy_by_domain
    assert {"val_f1_macro", "val_loss", "val_mean_over_domains", "val_std_over_domains"} < set(row)
    assert all(type(value) in (float, dict) for value in row.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": np.zeros((0, 5)), "labels": np.zeros(0, int), "domain": np.zeros(0, int)}, "no samples"),
        ({"outputs": np.zeros((3, 4))}, r"shape \(3, 4\), expected \(3, 5\)"),
        ({"labels": np.array([0, 5, 1])}, "run from 0 to 5, expected 0 to 4"),
        ({"outputs": np.array([[np.nan] * 5, [0] * 5, [np.inf] * 5])}, "not finite for 2 of 3 .*training.lr"),
    ],
)
def test_refusals(change: dict[str, np.ndarray], message: str) -> None:
    arrays: dict[str, Any] = {
        "outputs": np.zeros((3, 5)),
        "labels": np.zeros(3, int),
        "domain": np.zeros(3, int),
    }
    with pytest.raises(FedgeoError, match=message):
        evaluate(**(arrays | change), domains=DOMAINS, classes=CLASSES)


# from the clients' confusions


def by_client(n: int, seed: int) -> tuple[Scores, list[Scores], list[str]]:
    """The scores over all samples, and those of five clients: three of domain art, two of photo."""
    logits, labels, _ = trial(n, seed)
    client = np.random.default_rng(seed).integers(0, 5, n)
    domain = (client >= 3).astype(int)
    own = [evaluate(logits[client == k], labels[client == k], domain[client == k], DOMAINS, CLASSES) for k in range(5)]
    return evaluate(logits, labels, domain, DOMAINS, CLASSES), own, ["art"] * 3 + ["photo"] * 2


@settings(max_examples=25)
@given(n=st.integers(60, 200), seed=st.integers(0, 100))
def test_merged_client_scores_equal_the_pooled_ones(n: int, seed: int) -> None:
    pooled, own, domains = by_client(n, seed)
    merged = scores_from_confusions([s.confusion for s in own], domains, [s.loss * s.samples for s in own])
    for name in ("accuracy", "f1_macro", "loss", "mean_over_domains", "std_over_domains"):
        assert getattr(merged, name) == pytest.approx(getattr(pooled, name)), name
    assert merged.row()["f1_macro_clients"] == pytest.approx(sum(s.f1_macro for s in own) / 5)
    assert merged.accuracy_by_domain == pytest.approx(pooled.accuracy_by_domain)
    assert np.array_equal(merged.confusion, pooled.confusion) and merged.samples == n


def test_clients_without_samples_or_of_mixed_domains() -> None:
    _, own, _ = by_client(100, 0)
    confusions = [s.confusion for s in own] + [np.zeros((5, 5), dtype=np.int64)]
    sums = [s.loss * s.samples for s in own] + [0.0]
    mixed = scores_from_confusions(confusions, [None] * 6, sums)
    assert mixed.accuracy_by_domain == {} and mixed.mean_over_domains is None and mixed.std_over_domains is None
    assert mixed.f1_macro_clients == pytest.approx(np.mean([s.f1_macro for s in own]))
    partly = scores_from_confusions(confusions, [None, *["art"] * 4, "photo"], sums)
    hits = sum(np.trace(c) for c in confusions[1:5])
    assert partly.accuracy_by_domain == {"art": pytest.approx(hits / sum(c.sum() for c in confusions[1:5]))}
    assert partly.accuracy == mixed.accuracy


@pytest.mark.parametrize("confusions", [[], [np.zeros((2, 2), dtype=np.int64)]])
def test_no_client_with_samples_is_refused(confusions: list[np.ndarray]) -> None:
    with pytest.raises(FedgeoError, match="no client has samples"):
        scores_from_confusions(confusions, ["art"] * len(confusions), [0.0] * len(confusions))


# what a run reports


def lines(test: list[float | None], val: list[float | None] | None = None, first: int = 1) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"round": first + i, "accuracy": value} for i, value in enumerate(test)]
    for row, value in zip(rows, val or [], strict=False):
        row["val_accuracy"] = value
    return rows


def test_final_is_the_mean_of_the_last_five_or_the_last() -> None:
    rounds = lines([0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    assert final_and_best(rounds, "accuracy")["final"] == pytest.approx((0.2 + 0.3 + 0.4 + 0.5 + 0.9) / 5)
    assert final_and_best(rounds, "accuracy", "last")["final"] == 0.9
    assert final_and_best(rounds[:3], "accuracy")["final"] == pytest.approx(0.2)
    assert final_and_best(rounds[:1], "accuracy")["final"] == 0.1


def test_best_is_the_test_metric_of_the_first_best_validation_round() -> None:
    rounds = lines([0.5, 0.6, 0.9, 0.7], [0.3, 0.8, 0.2, 0.8])
    assert final_and_best(rounds, "accuracy", "last") == {
        "metric": "accuracy",
        "final": 0.7,
        "best": 0.6,
        "best_round": 2,
        "val_metric": 0.8,
    }


def test_rounds_that_were_not_evaluated_do_not_count() -> None:
    rounds = lines([0.1, None, 0.3, None], [0.2, None, math.nan, None])
    reported = final_and_best(rounds, "accuracy")
    assert reported["final"] == pytest.approx(0.2) and reported["best_round"] == 1


def test_round_zero_counts_only_alone() -> None:
    rounds = lines([0.9, 0.1, 0.3], [0.9, 0.1, 0.3], first=0)
    reported = final_and_best(rounds, "accuracy")
    assert reported["final"] == pytest.approx(0.2) and reported["best_round"] == 2
    alone = final_and_best(rounds[:1], "accuracy")
    assert (alone["final"], alone["best"], alone["best_round"]) == (0.9, 0.9, 0)


def test_a_best_of_zero_is_a_number_and_no_validation_is_none() -> None:
    assert final_and_best(lines([0.0], [0.0]), "accuracy")["best"] == 0.0
    reported = final_and_best(lines([0.5]), "accuracy")
    assert reported["final"] == 0.5
    assert [reported[key] for key in ("best", "best_round", "val_metric")] == [None] * 3


def test_reporting_refuses_unknown_names() -> None:
    with pytest.raises(FedgeoError, match="metric.name=auc: no round has it; there are accuracy"):
        final_and_best(lines([0.5]), "auc")
    with pytest.raises(FedgeoError, match="metric.final=mean: allowed are last5, last"):
        final_and_best(lines([0.5]), "accuracy", "mean")
