"""What a comparison tries for an arm: the points of a grid over its learning rate and its method's own coefficients.

Every arm has the same number of points. Where a method declares values of its own (``grid`` in its file of conf/method)
or the arm lists some (``model.init=zeros,lda``), the rest of the points goes into the rates; a method without any has
that many rates more.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError

RATE = "training.lr"
RATES, POINTS = (0.1, 20.0), 12  # between which rates, and how many settings an arm is tried at
Value = float | str
Axes = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Choice:
    """One point of a grid: the values of its keys, and those of them that lie at an end of what was tried."""

    values: tuple[tuple[str, Value], ...] = ()
    edges: tuple[str, ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"{key}={shown(value)}" for key, value in self.values)

    @property
    def label(self) -> str:
        """For the folder of a run: 'lr0.5-alpha0.001'."""
        return "-".join(f"{key.rpartition('.')[2]}{shown(value)}" for key, value in self.values) or "untuned"

    @property
    def words(self) -> str:
        """For a table: 'lr 0.5, alpha 0.001*', a star where the value is at an end of its axis."""
        found = (f"{key.rpartition('.')[2]} {shown(v)}{'*' * (key in self.edges)}" for key, v in self.values)
        return ", ".join(found) or "-"


def shown(value: Value) -> str:
    """As an override has it."""
    return value if isinstance(value, str) else f"{value:g}"


def axes(listed: Axes, declared: Axes, rates: tuple[float, float] | None, points: int) -> dict[str, tuple[Value, ...]]:
    """The axes of a grid of at most ``points`` points.

    listed: by the arm. declared: the method's coefficients; where all of them together are more than ``points``, evenly
    spaced ones. rates: the lowest and highest learning rate, None for an arm without one; there are as many between
    them, evenly spaced by their logarithms, as points are left. Raises FedgeoError where nothing is left for them.
    """
    found: dict[str, tuple[Value, ...]] = dict(listed)
    for key, values in declared.items():
        room = points // math.prod(map(len, found.values()))
        found[key] = tuple(values[i] for i in spaced(len(values), max(1, min(room, len(values)))))
    left = points // math.prod(map(len, found.values()))
    if left < 1:
        raise FedgeoError(f"{math.prod(map(len, found.values()))} combinations are listed, {points} may be tried")
    if rates is not None:
        low, high = rates
        between = [math.sqrt(low * high)] if left == 1 else np.geomspace(low, high, left).tolist()
        found = {RATE: tuple(dict.fromkeys(float(f"{rate:.2g}") for rate in between)), **found}
    return found


def spaced(n: int, k: int) -> list[int]:
    """k of the numbers below n, evenly spaced, both ends among them where k is more than one."""
    return [n // 2] if k == 1 < n else [round(i * (n - 1) / max(1, k - 1)) for i in range(k)]


def choices(axes: Axes) -> list[Choice]:
    """All points of the grid, ascending."""
    ends = {key: (values[0], values[-1]) for key, values in axes.items() if len(values) > 1 and _ordered(values)}
    return [
        Choice(
            tuple(zip(axes, point, strict=True)),
            tuple(key for key, value in zip(axes, point, strict=True) if value in ends.get(key, ())),
        )
        for point in itertools.product(*axes.values())
    ]


def _ordered(values: Sequence[Value]) -> bool:
    """Whether the axis has ends: numbers have, names have not."""
    return not any(isinstance(value, str) for value in values)
