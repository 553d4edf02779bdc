"""Simulated EEG, for where no recording is at hand. Its results say nothing about people.

Sources with mu and beta rhythms and background activity, mixed through one fixed lead field. A class weakens
the rhythms of its own source (event-related desynchronisation); subjects differ in how strongly, in their
lead field and in their gains; sensors add noise.
"""

from collections.abc import Sequence

import numpy as np
from scipy.signal import butter, sosfiltfilt

from ...common.errors import FedgeoError
from .trials import Trials

_BACKGROUND = 16  # sources that carry no class
_BAND = (8.0, 32.0)
_SHORTEST = 27  # samples that the filter pads a trial with, and needs more than
_LEAD_FIELD_SEED = 20_240_601  # one head for all seeds


def simulated(
    subjects: int = 8,
    *,
    trials_per_class: int = 40,
    classes: Sequence[str] = ("left_hand", "right_hand"),
    channels: int = 22,
    rate: float = 128.0,
    seconds: float = 3.0,
    seed: int = 0,
) -> list[Trials]:
    """Trials of simulated subjects ``simulated-1`` and on, band-limited to 8-32 Hz, in microvolt.

    The trials of a class come in random order, ``round(seconds * rate)`` samples each, channels E1 and on.
    The same arguments give the same bytes. Raises FedgeoError for fewer than two classes, channels or a rate
    too low for the band.
    """
    if len(classes) < 2 or channels < 2 or subjects < 1 or trials_per_class < 1 or rate <= 2 * _BAND[1]:
        raise FedgeoError(
            f"simulated EEG needs 1 subject, 2 classes, 2 channels, 1 trial a class and above {2 * _BAND[1]:g} Hz; "
            f"got {subjects}, {len(classes)}, {channels}, {trials_per_class} and {rate:g} Hz"
        )
    if round(seconds * rate) <= _SHORTEST:
        raise FedgeoError(
            f"data.window: simulated trials need more than {_SHORTEST} samples for the filter, {seconds:g} s at "
            f"{rate:g} Hz are {round(seconds * rate)}"
        )
    field = _lead_field(len(classes), channels)
    return [
        _subject(
            index,
            field,
            tuple(classes),
            trials_per_class,
            rate,
            round(seconds * rate),
            np.random.default_rng([seed, index]),
        )
        for index in range(subjects)
    ]


def _lead_field(classes: int, channels: int) -> np.ndarray:
    """(channels, classes + background): smooth patterns of sources inside a head whose upper half bears
    electrodes.

    The classes' sources lie in a ring around the top, as far apart as they can be; the background's lie
    anywhere.
    """
    k = np.arange(channels) + 0.5
    height, angle = 1 - 0.9 * k / channels, np.pi * (1 + 5**0.5) * k
    radius = np.sqrt(1 - height**2)
    electrodes = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), height])
    rng = np.random.default_rng(_LEAD_FIELD_SEED)
    around = 2 * np.pi * np.arange(classes) / classes
    ring = np.column_stack([0.6 * np.cos(around), 0.6 * np.sin(around), np.full(classes, 0.8)])
    anywhere = rng.standard_normal((_BACKGROUND, 3))
    anywhere[:, 2] = np.abs(anywhere[:, 2])
    places = np.concatenate([ring, anywhere])
    places *= 0.85 / np.linalg.norm(places, axis=1, keepdims=True)
    distance = np.linalg.norm(electrodes[:, None] - places[None], axis=2)
    return np.exp(-((distance / 0.6) ** 2))


def _subject(
    index: int,
    field: np.ndarray,
    classes: tuple[str, ...],
    per_class: int,
    rate: float,
    samples: int,
    rng: np.random.Generator,
) -> Trials:
    n, sources, k = per_class * len(classes), field.shape[1], len(classes)
    labels = rng.permutation(np.repeat(np.arange(k), per_class))
    own_field = field * rng.lognormal(0.0, 0.2, field.shape) * rng.lognormal(0.0, 0.2, (len(field), 1))
    amplitude = rng.lognormal(np.log(8.0), 0.4, sources)  # microvolt at the electrode right above
    depth = rng.uniform(0.3, 0.7)  # how much of its rhythm the source of the trial's class loses
    gains = amplitude * rng.lognormal(0.0, 0.3, (n, sources))  # each trial's own strength of each source
    gains[np.arange(n), labels] *= 1 - depth
    activity = _rhythms(rng, n, sources, rate, samples) * gains[:, :, None]
    noise = _band_limited(rng.standard_normal((n, len(field), samples)), _BAND, rate) * 4.0
    return Trials(
        subject=f"simulated-{index + 1}",
        trials=(own_field @ activity + noise).astype(np.float32),
        labels=labels.astype(np.int64),
        run=np.zeros(n, dtype=np.int64),
        recordings=("simulated",),
        channels=tuple(f"E{channel + 1}" for channel in range(len(field))),
        rate=float(rate),
        classes=classes,
        notes=("simulated",),
    )


def _rhythms(rng: np.random.Generator, n: int, sources: int, rate: float, samples: int) -> np.ndarray:
    """(n, sources, samples) of unit variance: mu (9-13 Hz) and beta (18-26 Hz) over a broad background."""
    total = np.zeros((n, sources, samples))
    for band, share in (((9.0, 13.0), 0.6), ((18.0, 26.0), 0.25), (_BAND, 0.15)):
        total += np.sqrt(share) * _band_limited(rng.standard_normal((n, sources, samples)), band, rate)
    return total


def _band_limited(noise: np.ndarray, band: tuple[float, float], rate: float) -> np.ndarray:
    """White noise filtered to a band and scaled to unit variance."""
    filtered = sosfiltfilt(butter(4, band, btype="bandpass", fs=rate, output="sos"), noise, axis=-1)
    return filtered / filtered.std()
