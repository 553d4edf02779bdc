"""Whether channels are what scalp EEG is: the unit of a recording, and single channels unlike the rest of it."""

import mne
import numpy as np

from ...common.errors import FedgeoError

TYPICAL_STD = 20.0  # microvolt: what a channel of scalp EEG deviates by within a second
UNLIKE = 20.0  # times larger or smaller than the others: more than any scalp channel is by itself
STRANGE = 12.0  # the same for a note
FLAT = "is flat"
STUCK = 0.3  # the share of samples that repeat the one before, beyond that of the others


def typical_spread(raw: mne.io.BaseRaw, microvolts: float) -> float:
    """The size of a recording, in microvolt: the median over channels of their median deviation within a second.

    It is measured before any filter, and by the second, so that slow drifts and the choice of band do not matter.
    NaN where nothing moves.
    """
    moving = _by_second(raw.get_data(), raw.info["sfreq"])
    moving[moving == 0] = np.nan
    if np.isnan(moving).all():
        return float("nan")
    rows = moving[~np.isnan(moving).all(axis=1)]
    return float(np.nanmedian(np.nanmedian(rows, axis=1))) * microvolts


def unlike(raw: mne.io.BaseRaw, microvolts: float) -> tuple[dict[str, str], dict[str, str]]:
    """Channels that cannot be right, and channels that are strange: what is odd about each.

    raw: loaded. A channel is judged by its deviation within a second against the median of all, so that one labelled
    in another unit, one that carries noise alone and one that carries nothing stand out, and by samples that repeat.
    """
    data, names = raw.get_data(), raw.ch_names
    broken = ~np.isfinite(data).all(axis=1)
    bad = {names[index]: "holds values that are not numbers (NaN or infinite)" for index in np.flatnonzero(broken)}
    strange: dict[str, str] = {}
    whole = np.flatnonzero(~broken)
    if len(whole) < 2:
        return bad, strange
    seconds = _by_second(data[whole], raw.info["sfreq"]) * microvolts
    seconds = seconds[:, seconds.any(axis=0)]  # time that was not recorded is flat in all
    sizes = np.median(seconds, axis=1) if seconds.size else np.zeros(len(whole))
    repeats = (np.diff(data[whole], axis=1) == 0).mean(axis=1)
    moving = sizes > 0
    typical = float(np.median(sizes[moving])) if moving.any() else TYPICAL_STD
    if len(whole) == 2 and moving.all():  # of two, the one that is more like EEG
        typical = float(sizes[np.abs(np.log(sizes / TYPICAL_STD)).argmin()])
    for index, size, repeated in zip(whole, sizes, repeats, strict=True):
        name = names[index]
        ratio = max(size / typical, typical / size) if size else np.inf
        told = f"has a standard deviation of {size:.3g} microvolt, the others of {typical:.3g}"
        if np.ptp(data[index]) == 0:
            bad[name] = FLAT
        elif size == 0 or repeated > float(np.median(repeats)) + STUCK:
            bad[name] = f"is stuck: {100 * repeated:.0f} % of its samples repeat the one before"
        elif ratio > UNLIKE:
            bad[name] = told
        elif ratio > STRANGE:
            strange[name] = told
    return bad, strange


def flat_trials(epochs: mne.Epochs) -> dict[str, str]:
    """Channels that do not move during a trial, which has no covariance then; looked for before any filter."""
    flat = (np.ptp(epochs.get_data(copy=False), axis=2) == 0).sum(axis=0)
    return {
        channel: f"is flat in {trials} of {len(epochs)} trials"
        for channel, trials in zip(epochs.ch_names, flat, strict=True)
        if trials
    }


def interpolate(raw: mne.io.BaseRaw, bad: list[str]) -> None:
    """Make up the bad channels from their neighbours by mne's spherical splines, in place.

    Raises FedgeoError where a channel has no standard position, or too few are left.
    """
    montage = mne.channels.make_standard_montage("standard_1005")
    unknown = [name for name in raw.ch_names if name not in montage.ch_names]
    if unknown or len(raw.ch_names) - len(bad) < 4:
        why = f"{', '.join(unknown[:4])} have no place in the 10-05 system" if unknown else "fewer than 4 are left"
        raise FedgeoError(
            f"data.bad_channels=interpolate: {', '.join(bad)} cannot be made up from the others ({why}): "
            "set data.rename, or data.bad_channels=drop"
        )
    raw.set_montage(montage)
    raw.info["bads"] = bad
    broken = mne.pick_channels(raw.ch_names, bad)
    raw._data[broken] = 0.0  # so that no NaN is spread
    raw.interpolate_bads(reset_bads=True, verbose="ERROR")


def unit_factor(spread: float) -> float:
    """The power of 1000 that brings a recording's size to that of scalp EEG; 1 where its unit can be right."""
    return float(10.0 ** (3 * round(np.log10(TYPICAL_STD / spread) / 3)))


def wrong_unit(spread: float, subject: str, scale: float) -> str:
    """What to say of a subject's recording whose size, read with data.scale ``scale``, can only be another unit's."""
    factor = unit_factor(spread)
    return (
        f"a channel's standard deviation is {spread:.3g} microvolt, expected 1 to 100, so the unit is wrong: multiply "
        f"data.scale by {factor:g} (of this subject alone: data.scale={{{subject}: {factor * scale:g}}}), or correct "
        "the unit in its header"
    )


def average_reference(raw: mne.io.BaseRaw) -> bool:
    """Whether the channels add up to zero at every time (to the precision that files are written with)."""
    data = raw.get_data()
    return len(data) > 1 and float(data.mean(axis=0).std()) < 0.01 * float(np.median(data.std(axis=1)))


def _by_second(data: np.ndarray, rate: float) -> np.ndarray:
    """Standard deviations within each second, float64 (channels, seconds)."""
    length = min(round(rate), data.shape[1])
    count = data.shape[1] // length
    parts = data[:, : count * length].reshape(len(data), count, length)
    return np.where(np.ptp(parts, axis=2) > 0, parts.std(axis=2), 0.0)  # rounding makes the deviation of a constant
