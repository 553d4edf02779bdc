"""A summary says what its final figure is."""

from typing import Any

import pytest

from app.config.compose import load
from app.runs.summary import summarise


def rows(accuracies: list[float]) -> list[dict[str, Any]]:
    return [
        {"round": n, "accuracy": a, "f1_macro": a, "val_accuracy": -a, "val_loss": a, "accuracy_by_domain": {"d": a}}
        for n, a in enumerate(accuracies, start=1)
    ]


@pytest.mark.parametrize(
    ("words", "accuracies", "meaning", "final"),
    [
        ((), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "mean of the last 5 rounds", 0.4),
        ((), [0.35, 0.73], "mean of the last 2 rounds", 0.54),
        ((), [0.9], "last round", 0.9),
        (("metric.final=last",), [0.1, 0.2], "last round", 0.2),
        (("method=centralised", "augmentation=none"), [0.3, 0.2, 0.4], "round 2, the best validation round", 0.2),
    ],
)
def test_the_final_figure_is_named(words: tuple[str, ...], accuracies: list[float], meaning: str, final: float) -> None:
    summary = summarise(load(words), rows(accuracies), "completed", None)
    assert (summary["final_of"], summary["last"]) == (meaning, accuracies[-1])
    assert summary["final"] == pytest.approx(final)
