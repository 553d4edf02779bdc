"""Plain checks of arrays that came from another machine. Errors begin with who sent them."""

from collections.abc import Collection, Mapping

import numpy as np

from .errors import FedgeoError

MOST = 10**9  # samples, rounds, steps
LARGEST = 1e9  # no honest weight, statistic or gradient comes near it; squares and sums of it are still finite


def only(found: Collection[str], wanted: Collection[str], who: str, what: str) -> None:
    """Refuse names that are not exactly ``wanted``."""
    if set(found) != set(wanted):
        odd = sorted(set(found) ^ set(wanted))[0]
        fault = "is missing" if odd in wanted else "is unknown"
        raise FedgeoError(f"{who}: {what} {odd!r} {fault}; expected {', '.join(wanted) or 'none'}")


def array(
    arrays: Mapping[str, np.ndarray], name: str, dtype: str, shape: tuple[int | None, ...], who: str
) -> np.ndarray:
    """An array of this type and shape (None: any length), finite and not absurdly large."""
    value = arrays[name]
    fits = value.ndim == len(shape) and all(n is None or n == m for n, m in zip(shape, value.shape, strict=True))
    if not fits or value.dtype.name != dtype:
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise FedgeoError(f"{who}: {name} must be {dtype} {wanted}, not {value.dtype} {value.shape}")
    bounded(value, name, who)
    return value


def bounded(value: np.ndarray, name: str, who: str) -> None:
    """Refuse values that are not finite or beyond LARGEST."""
    if value.size and not float(np.abs(value).max()) <= LARGEST:
        raise FedgeoError(f"{who}: {name} holds values that are not finite, or above {LARGEST:g}")


def check_counts(classes: np.ndarray, counts: np.ndarray, reported: np.ndarray, who: str) -> None:
    """Refuse classes and counts that are not those of the client's handshake, ``reported`` int (C,)."""
    if len(classes) and int(classes.max()) >= len(reported):
        raise FedgeoError(f"{who}: class {classes.max()} is not among the {len(reported)} classes")
    found = np.zeros(len(reported), dtype=np.int64)
    found[classes] = counts
    if (odd := np.flatnonzero(found != reported)).size:
        raise FedgeoError(f"{who}: class {odd[0]} has {found[odd[0]]} samples, it said {reported[odd[0]]}")
