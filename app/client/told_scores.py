"""What is told of how good a model is at a client: counts in the steps in which all counts are told.

A model can be made to ask one thing of one sample: whether it lies beyond a threshold. A cell of a confusion that
counts 1, or 41 after 40, is the answer, and ten such answers are a coordinate of the sample.
"""

import math

import numpy as np

from ..config.privacy import scoring_step
from ..config.schema import Privacy


def told_confusion(confusion: np.ndarray, privacy: Privacy) -> np.ndarray:
    """int64 (C, C): ``confusion`` in whole steps, with the same samples by class.

    confusion: int (C, C), true classes in rows, whose sums are whole steps (app/data/policy_view.py). The right ones of
    the first class, of the first two and so on are told to the nearest step, so that those of all classes together are
    off by half a step at most; likewise a class's wrong ones over the other classes.
    """
    step = scoring_step(privacy)
    if step == 1:
        return confusion
    right = np.diag(confusion)
    told = np.diag(in_steps(np.cumsum(right), step))
    for label, own in enumerate(confusion):
        elsewhere = np.arange(len(own)) != label
        if wrong := int(own[elsewhere].sum()):
            all_wrong = int(own.sum()) - int(told[label, label])
            told[label, elsewhere] = in_steps(np.cumsum(own[elsewhere]) * all_wrong / wrong, step)
    return told


def told_loss(losses: np.ndarray, classes: int, privacy: Privacy) -> float:
    """The sum of ``losses``, a cross-entropy a sample, as it is told.

    Where counts are told in steps, no sample counts for more than 2 log C, and the sum is told in steps of as many
    samples times log C: else one sample's loss, made as large as one likes, would stand out of it.
    """
    if (step := scoring_step(privacy)) == 1:
        return float(losses.sum())
    usual = math.log(max(classes, 2))
    return round(float(np.minimum(losses, 2 * usual).sum()) / (step * usual)) * step * usual


def in_steps(sums: np.ndarray, step: int) -> np.ndarray:
    """int64 (n,): the numbers whose running sums are ``sums`` (n,), each to the nearest step, half a step up."""
    return np.diff(np.floor(sums / step + 0.5).astype(np.int64) * step, prepend=0)
