"""What a source of EEG is: where subjects' trials come from. A source is a file here and a yaml in conf/data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ....common.errors import FedgeoError
from ....config.schema import EegData
from ..trials import Trials


class EegSource:
    """Reads the subjects that the configuration names. A dataclass: its fields are settings of its own, if any.

    name: that of its file and of ``data.kind``.
    """

    name: ClassVar[str] = ""

    def read(self, data: EegData, *, seed: int, cache: Path) -> Sequence[Trials]:
        """All subjects' processed trials, in microvolt, float32 (n, channels, samples), in a fixed order.

        data: the settings that all sources share (conf/data/_eeg.yaml). seed: the run's. cache: a folder for processed
        trials. Every process of a run must get the same. Raises FedgeoError for what cannot be had.
        """
        raise NotImplementedError


def processing(data: EegData) -> dict[str, Any]:
    """How recordings become trials, as the functions that read recordings take it."""
    return {
        "band": None if data.band is None else (data.band[0], data.band[1]),
        "notch": data.notch,
        "resample": data.resample,
        "scale": data.scale,
        "channels": data.channels,
        "bad_channels": data.bad_channels,
        "reference": data.reference,
        "rename": data.rename,
    }


def listed(data: EegData) -> list[int | str] | None:
    """The subjects wanted, None for all. Raises FedgeoError for a mere number of them."""
    if isinstance(data.subjects, int):
        raise FedgeoError(f"data.subjects={data.subjects}: give a list of subjects, such as [{data.subjects}]")
    return data.subjects


def folder_of(data: EegData) -> Path:
    """``data.path``. Raises FedgeoError where it is not set."""
    if data.path is None:
        raise FedgeoError(f"data.path is not set: {data.name} needs the folder of your recordings")
    return Path(data.path)
