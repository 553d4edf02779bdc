"""Two ways to one result."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WARM_UP = 10  # calls of each side before any is timed


@dataclass(frozen=True)
class Pair:
    """Two ways to the same result, each built when it is needed: a builder returns the call that is timed.

    agree: raises AssertionError where the results differ; nothing is timed before it has passed.
    pairs: timed calls of each side where the user does not say. clock: CPU seconds (``time.process_time``) where one
    thread of this process does all the work, so that other programs do not count; else the wall clock.
    share: how much of the work that ours does the reference's call does, where all of it would take minutes.
    memory: peak memory of both sides in MB, asked after the timing, where it is not that of this program alone.
    """

    setting: str
    ours: Callable[[], Callable[[], Any]]
    reference: Callable[[], Callable[[], Any]]
    agree: Callable[[], None]
    pairs: int = 100
    warm_up: int = WARM_UP
    clock: Callable[[], float] = time.perf_counter
    share: float = 1.0
    memory: Callable[[], tuple[float, float]] | None = None

    def seconds(self, call: Callable[[], Any]) -> float:
        """What one call takes. A call that measures itself returns its seconds as a float."""
        start = self.clock()
        told = call()
        return told if isinstance(told, float) else self.clock() - start
