"""Simulated recordings, as a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ....config.schema import EegData
from ..simulated import simulated
from ..trials import Trials
from .base import EegSource


@dataclass(frozen=True)
class Simulated(EegSource):
    """``data.subjects`` says how many."""

    name: ClassVar[str] = "simulated"

    def read(self, data: EegData, *, seed: int, cache: Path) -> Sequence[Trials]:
        return simulated(
            data.subjects if isinstance(data.subjects, int) else 8,
            trials_per_class=data.trials_per_class,
            seconds=data.window[1] - data.window[0],
            seed=seed,
        )
