"""How sure a share of right answers is, and the difference of two models on the same samples."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import bdtr, ndtri  # scipy.stats takes a second to import, in every process of a client

Verdict = Literal["better", "worse", "unclear"]
CONFIDENCE = 0.95
Z = float(ndtri((1 + CONFIDENCE) / 2))  # 1.96


@dataclass(frozen=True)
class Difference:
    """One model less another on the same n samples, as shares. p: McNemar's exact, two-sided."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> Verdict:
        """Whether the interval lies on one side of 0."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % interval of ``right`` / ``n`` (Wilson, 1927); (0, 1) of no samples.

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),    p = right / n
    """
    if n == 0:
        return 0.0, 1.0
    p, square = right / n, Z**2 / n
    reach = Z * math.sqrt(p * (1 - p) / n + square / n / 4)
    low, high = ((p + square / 2 + sign * reach) / (1 + square) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def paired(one: np.ndarray, other: np.ndarray) -> Difference:
    """``one`` less ``other``, bool (n,) each: whether the model was right on the sample.

    The interval is Wald's with half an observation added to each of the four cells of the two models' answers (Agresti
    and Min, 2005), which holds its level on small samples too.
    """
    n, only_one, only_other = len(one), int((one & ~other).sum()), int((~one & other).sum())
    if n == 0:
        return Difference(0.0, -1.0, 1.0, 1.0)
    b, c, total = only_one + 0.5, only_other + 0.5, n + 2.0
    middle, spread = (b - c) / total, math.sqrt(b + c - (b - c) ** 2 / total) / total
    reach = Z * spread
    p = min(1.0, 2 * float(bdtr(min(only_one, only_other), only_one + only_other, 0.5)))  # both tails, alike
    return Difference((only_one - only_other) / n, max(-1.0, middle - reach), min(1.0, middle + reach), p)
