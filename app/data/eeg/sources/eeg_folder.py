"""A folder of recordings, as a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ....config.schema import EegData
from ..trials import Trials
from .base import EegSource, folder_of, listed, processing


@dataclass(frozen=True)
class EegFolder(EegSource):
    """``data.path`` is the folder."""

    name: ClassVar[str] = "eeg_folder"

    def read(self, data: EegData, *, seed: int, cache: Path) -> Sequence[Trials]:
        from ..folder import eeg_folder  # mne takes seconds, so not before it is wanted

        subjects = listed(data)
        return eeg_folder(
            folder_of(data),
            events=data.events,
            subjects=subjects,
            runs=data.runs,
            window=(data.window[0], data.window[1]),
            subject_pattern=data.subject_pattern,
            labels_csv=data.labels_csv,
            windows=None if data.windows is None else (data.windows[0], data.windows[1]),
            cache=cache,
            **processing(data),
        )
