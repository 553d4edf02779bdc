"""Arms: the runs that differ in their seed alone, what sets arms apart, and two arms compared seed by seed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..common.errors import FedgeoError
from ..runs.reader import PLACES, Run, identity

CONFIDENCE = 0.95
# what people tell arms apart by, before any other key
FIRST = ("experiment", "variant", "data.name", "model.kind", "method.name", "augmentation.kind", "steps")
SHORT = {"method.name": "method", "augmentation.kind": "augmentation", "model.kind": "model", "data.name": "data"}
# what the others are compared with, where an arm has it
BASELINES = {"method.name": ("fedavg", "centralised"), "augmentation.kind": ("none", "repeat")}


@dataclass(frozen=True)
class Spread:
    """mean and std (divisor n - 1; None for one value) of n values."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True, eq=False)
class Arm:
    """Completed runs of one configuration, one a seed, in the order of the seeds. choices: what sets it apart."""

    runs: tuple[Run, ...]
    choices: dict[str, Any]

    @property
    def label(self) -> str:
        """For people: 'fedavg none', and where it is not a name, 'fedavg none training.lr=0.1'."""
        words = (show(value) if key in SHORT else f"{key}={show(value)}" for key, value in self.choices.items())
        return " ".join(words) or "all runs"

    @cached_property
    def by_seed(self) -> dict[int, Run]:
        return {run.seed: run for run in self.runs}

    @property
    def metric(self) -> str:
        return str(self.runs[0].summary.get("metric"))

    def values(self, key: str) -> list[float]:
        """The runs' figures of this key of the summary, without those that have none."""
        return [value for run in self.runs if (value := run.figure(key)) is not None]

    def spread(self, key: str) -> Spread | None:
        return spread(self.values(key))


@dataclass(frozen=True, eq=False)
class Pair:
    """``arm`` less ``other``, over the seeds that both have: each difference, their mean and its interval.

    low, high: the interval of the mean at level CONFIDENCE, by Student's t; None with fewer than two seeds.
    """

    arm: Arm
    other: Arm
    key: str  # what the two differ in
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.differences) / len(self.differences)

    @cached_property
    def half_width(self) -> float | None:
        return half_width(self.differences)

    @property
    def wins(self) -> int:
        """In how many seeds ``arm`` is ahead."""
        return sum(difference > 0 for difference in self.differences)


def half_width(values: Sequence[float]) -> float | None:
    """Half the interval of their mean at level CONFIDENCE, by Student's t; None with fewer than two."""
    n = len(values)
    if n < 2:
        return None
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / math.sqrt(n))


def spread(values: Sequence[float]) -> Spread | None:
    """Their mean and standard deviation (ddof 1); None of none."""
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(math.fsum(values) / len(values), std, len(values))


def arms(runs: Iterable[Run]) -> list[Arm]:
    """The completed runs, grouped; a configuration that was run twice with one seed counts once, by its last path.

    Arms come in the order of their choices as they are first met.
    """
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        if run.completed:
            groups.setdefault(identity(run.config, without=("seed",)), {})[run.seed] = run
    keys = distinguishing_keys(list(groups.values()))
    made = [
        Arm(tuple(by_seed[seed] for seed in sorted(by_seed)), {key: _first(by_seed).flat.get(key) for key in keys})
        for by_seed in groups.values()
    ]
    orders = {key: _order(key, [arm.choices[key] for arm in made]) for key in keys}
    return sorted(made, key=lambda arm: [orders[key].index(show(arm.choices[key])) for key in keys])


def distinguishing_keys(groups: Sequence[dict[int, Run]]) -> list[str]:
    """The fewest keys, the familiar ones first, by which all groups differ."""
    flats = [_first(group).flat for group in groups]
    every = {key for flat in flats for key in flat if key.split(".")[0] not in (*PLACES, "seed")}
    varied = [key for key in every if len({show(flat.get(key)) for flat in flats}) > 1]
    order = sorted(varied, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))
    chosen: list[str] = []
    apart: list[tuple[str, ...]] = [() for _ in flats]
    for key in order:
        further = [(*so_far, show(flat.get(key))) for so_far, flat in zip(apart, flats, strict=True)]
        if len(set(further)) > len(set(apart)):
            chosen.append(key)
            apart = further
    return chosen


def pairs(made: Sequence[Arm], key: str = "final", against: str | None = None) -> list[Pair]:
    """The arms that differ in one choice, each with the baseline of that choice, in figure ``key``.

    Baselines are the value ``against``, else those of BASELINES, and of any other choice the first value. Two arms
    share at least one seed. Raises FedgeoError where no arm has the value ``against``.
    """
    if against is not None:
        met = dict.fromkeys(show(value) for arm in made for value in arm.choices.values())
        if against not in met:
            raise FedgeoError(f"--against {against}: no run has it; they have {', '.join(met) or 'no choices'}")
    found = []
    firsts = {choice: show(made[0].choices[choice]) for choice in made[0].choices} if made else {}
    for first, second in combinations(made, 2):
        differ = [c for c in first.choices if show(first.choices[c]) != show(second.choices[c])]
        if len(differ) != 1 or first.metric != second.metric:
            continue
        baselines = (against,) if against is not None else BASELINES.get(differ[0], (firsts[differ[0]],))
        for arm, other in ((second, first), (first, second)):
            if show(other.choices[differ[0]]) in baselines:
                if values := _differences(arm, other, key):
                    found.append(Pair(arm, other, differ[0], values))
                break
    return found


def show(value: Any) -> str:
    """A configuration's value as it is written in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _differences(arm: Arm, other: Arm, key: str) -> tuple[float, ...]:
    shared = [seed for seed in arm.by_seed if seed in other.by_seed]
    both = [(arm.by_seed[seed].figure(key), other.by_seed[seed].figure(key)) for seed in shared]
    return tuple(a - b for a, b in both if a is not None and b is not None)


def _first(by_seed: dict[int, Run]) -> Run:
    return by_seed[min(by_seed)]


def _order(key: str, values: Sequence[Any]) -> list[str]:
    """The values of a choice in the order of rows: baselines first, numbers by size, the rest as met."""
    met = list(dict.fromkeys(show(value) for value in values))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return sorted(met, key=float)
    first = [value for value in BASELINES.get(key, ()) if value in met]
    return first + [value for value in met if value not in first]
