"""What a site tells of how good a model is: counts in tens, sums of losses likewise."""

import math

import numpy as np
import pytest

from app.client.told_scores import in_steps, told_confusion, told_loss
from app.config.privacy import RESEARCH, read_policy, scoring_step

SITE = read_policy(None)


def told(rows: list[list[int]]) -> np.ndarray:
    return told_confusion(np.array(rows), SITE)


def test_research_tells_all_as_it_is() -> None:
    confusion, losses = np.array([[9, 1], [0, 10]]), np.array([0.5, 70.0])
    assert told_confusion(confusion, RESEARCH) is confusion and told_loss(losses, 2, RESEARCH) == 70.5


def test_whole_steps_are_told_as_they_are() -> None:
    rows = [[30, 10, 10], [0, 40, 10], [0, 0, 20]]
    assert told(rows).tolist() == rows


def test_what_one_class_lacks_of_a_step_the_next_one_has() -> None:
    """45 and 42 right are 87: 50 of the first, and 40 of the second make 90."""
    assert told([[45, 5, 0], [2, 42, 6], [0, 0, 20]]).tolist() == [[50, 0, 0], [0, 40, 10], [0, 0, 20]]


@pytest.mark.parametrize("rows", [[[50, 0], [40, 0]], [[30, 20], [0, 40]], [[10, 40], [20, 20]]])
def test_one_sample_that_crosses_a_threshold_is_not_seen(rows: list[list[int]]) -> None:
    for label in (0, 1):
        after = np.array(rows)
        after[label] += [-1, 1] if after[label, 0] else [1, -1]
        assert told(after.tolist()).tolist() == rows


def test_cells_are_tens_rows_are_true_and_the_accuracy_is_off_by_five_samples_at_most() -> None:
    rng = np.random.default_rng(0)
    off = []
    for _ in range(500):
        classes = int(rng.integers(2, 6))
        totals = 10 * rng.integers(0, 6, classes)
        confusion = np.stack([rng.multinomial(n, rng.dirichlet(np.full(classes, 0.3))) for n in totals])
        found = told_confusion(confusion, SITE)
        assert (found >= 0).all() and not (found % 10).any() and found.sum(axis=1).tolist() == totals.tolist()
        off.append(int(np.trace(found)) - int(np.trace(confusion)))
    assert max(map(abs, off)) == 5 and abs(np.mean(off)) < 0.5  # half a ten goes up


def test_a_loss_is_told_in_steps_to_which_no_sample_counts_for_much() -> None:
    usual, step = np.full(100, 0.3), 10 * math.log(2)
    assert told_loss(usual, 2, SITE) / step == pytest.approx(round(30 / step))
    assert told_loss(np.append(usual, 1e9), 2, SITE) == told_loss(np.append(usual, 1.4), 2, SITE)


def test_no_count_is_below_either_bound() -> None:
    steps = ((13, 10, 20), (3, 1, 3), (10, 25, 25), (60, 10, 60), (1, 1, 1))
    for least, rounding, step in steps:
        assert scoring_step(SITE.model_copy(update={"min_count": least, "round_counts": rounding})) == step


def test_running_sums_keep_their_end() -> None:
    assert in_steps(np.array([4.0, 9.0, 15.0, 20.0]), 10).tolist() == [0, 10, 10, 0]
