"""Notch, band-pass and resampling of a recording before it is cut: trials have no filter edges then."""

from dataclasses import dataclass

import mne
import numpy as np


@dataclass(frozen=True)
class Filters:
    """band: Hz, zero-phase Butterworth filter of order 4 (MOABB's, so that a recording gives the same trials whichever
    way it is read). notch: Hz or several, mne's default FIR notch filter. resample: Hz, mne's default, after the
    filters.
    """

    band: tuple[float, float] | None = (8.0, 32.0)
    notch: float | tuple[float, ...] | None = None
    resample: float | None = None

    def length(self, rate: float) -> int:
        """Samples at ``rate`` (Hz) that the longest of the filters spans: what a segment needs at least."""
        spans = [1]
        if self.band is not None:
            chosen = {"order": 4, "ftype": "butter", "output": "sos"}
            made = mne.filter.construct_iir_filter(chosen, list(self.band), None, rate, "bandpass", verbose="ERROR")
            spans.append(int(made["padlen"]))
        if self.notch is not None:  # its transition is 1 Hz wide, half of it on either side
            made = mne.filter.create_filter(
                None, rate, 10.5, 9.5, l_trans_bandwidth=0.5, h_trans_bandwidth=0.5, verbose="ERROR"
            )
            spans.append(len(made))
        return max(spans)

    def apply(self, raw: mne.io.BaseRaw, events: np.ndarray) -> tuple[mne.io.BaseRaw, np.ndarray]:
        """The recording, filtered in place, and its events at the sampling rate that it has then."""
        if self.notch is not None:
            raw.notch_filter(np.atleast_1d(self.notch).astype(float), picks="all")
        if self.band is not None:
            raw.filter(*self.band, method="iir", picks="all")
        if self.resample is not None and self.resample != raw.info["sfreq"]:
            raw, events = raw.resample(self.resample, events=events)
        return raw, events
