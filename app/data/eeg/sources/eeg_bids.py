"""A BIDS folder, as a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ....common.errors import FedgeoError
from ....config.schema import EegData
from ..trials import Trials
from .base import EegSource, folder_of, listed, processing


@dataclass(frozen=True)
class EegBids(EegSource):
    """``data.path`` is the folder."""

    name: ClassVar[str] = "eeg_bids"

    def read(self, data: EegData, *, seed: int, cache: Path) -> Sequence[Trials]:
        from ..bids import eeg_bids  # mne takes seconds, so not before it is wanted

        subjects, path = listed(data), folder_of(data)
        if not data.task or not data.events:
            raise FedgeoError("data.task and data.events are needed to read a BIDS folder")
        return eeg_bids(
            path,
            task=data.task,
            events=data.events,
            subjects=subjects,
            runs=data.runs,
            window=(data.window[0], data.window[1]),
            cache=cache,
            **processing(data),
        )
