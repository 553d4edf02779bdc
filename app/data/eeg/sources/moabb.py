"""Motor imagery sets that MOABB reads, as a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ....config.schema import EegData
from ..trials import Trials
from .base import EegSource, listed, processing


@dataclass(frozen=True)
class Moabb(EegSource):
    """``data.name`` is MOABB's."""

    name: ClassVar[str] = "moabb"

    def read(self, data: EegData, *, seed: int, cache: Path) -> Sequence[Trials]:
        from ..moabb_sets import eeg_moabb  # mne takes seconds, so not before it is wanted

        subjects = listed(data)
        return eeg_moabb(
            data.name,
            events=tuple(data.events or ()),
            interval=(data.window[0], data.window[1]),
            subjects=None if subjects is None else [int(subject) for subject in subjects],  # MOABB's are numbers
            exclude=tuple(data.exclude or ()),
            path=data.path,
            cache=cache,
            **processing(data),
        )
