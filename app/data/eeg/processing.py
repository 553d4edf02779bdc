"""How recordings become trials: what a run says of it. The same for every EEG source."""

from dataclasses import asdict, dataclass
from typing import Literal

import mne

from ...common.errors import FedgeoError
from .filters import Filters

BadChannels = Literal["refuse", "drop", "interpolate"]
Reference = Literal["none", "average"]


@dataclass(frozen=True)
class Processing:
    """How recordings become trials, the same for all of them.

    events: class name to annotation (or to the label of a labels file); its order is the order of the
    classes. window: seconds from the event, both ends included. windows: (length, step) in seconds of windows
    cut side by side from labelled recordings, instead of events. band, notch, resample: see ``Filters``.
    microvolts: how many one unit of the reader is. bad_channels: whether a channel unlike the rest is refused, left
    out of all recordings or interpolated. reference: none (as recorded), or the average of the channels used.
    """

    events: dict[str, str]
    window: tuple[float, float] = (0.0, 3.0)
    windows: tuple[float, float] | None = None
    band: tuple[float, float] | None = (8.0, 32.0)
    notch: float | tuple[float, ...] | None = None
    resample: float | None = None
    microvolts: float = 1e6
    bad_channels: BadChannels = "refuse"
    reference: Reference = "none"

    def __post_init__(self) -> None:
        values = list(self.events.values())
        if len(self.events) < 2 or len(set(values)) != len(values):
            raise FedgeoError(f"data.events must give two classes or more, each its own annotation: {self.events}")
        if self.window[0] >= self.window[1]:
            raise FedgeoError(f"data.window {list(self.window)} must end after it starts")
        if self.windows is not None and min(self.windows) <= 0:
            raise FedgeoError(f"data.windows {list(self.windows)} must be a positive length and step in seconds")
        if self.band is not None and not 0 < self.band[0] < self.band[1]:
            raise FedgeoError(f"data.band {list(self.band)} must be two rising frequencies in Hz")

    @property
    def filters(self) -> Filters:
        return Filters(self.band, self.notch, self.resample)

    def settings(self) -> dict:
        """All that decides the trials beside the recordings and channels, for the key of a cache."""
        return {"processing": asdict(self), "classes": list(self.events), "mne": mne.__version__}
