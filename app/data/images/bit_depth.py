"""How many bits the 16-bit images of a set use: found over the whole set, so that one factor brings all to 8 bits.

A camera of 10, 12 or 14 bits writes its values into 16-bit files, which do not say so. Scaled by 16 bits they come out
near black; scaled image by image they would lose how bright each is.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError
from ...encoders.embedding_cache import Shards, decoding_threads, remembered
from ..source import Source
from .decoding import FULL
from .folders import FileImages

DEPTHS = (8, 10, 12, 14, FULL)
_UNLIKE = 4  # bits that half of the images may fall short of the whole set's
_NONE = -1  # of an image without 16-bit values


def greatest_values(images: FileImages, cache: Path | None) -> np.ndarray:
    """The greatest value of each image of 16-bit values, int64 (n,); -1 for others, and for what cannot be read.

    cache: a folder that remembers them by path, size and time of modification.
    """

    def compute(index: int) -> bytes:
        try:
            found = images.greatest(index)
        except FedgeoError:  # told, with all others, when it is decoded
            found = None
        return np.int64(_NONE if found is None else found).tobytes()

    candidates = [index for index in range(len(images)) if images.may_be_deep(index)]
    values = np.full(len(images), _NONE, np.int64)
    if not candidates:
        return values
    with decoding_threads() as pool:
        if cache is None:
            found = list(pool.map(compute, candidates))
        else:
            memo = Shards(cache / "greatest", np.dtype((np.uint8, 8)))
            found = remembered(images, candidates, compute, memo, pool)
    values[candidates] = np.frombuffer(b"".join(found), np.int64)
    return values


def bit_depth(greatest: np.ndarray, whose: str) -> int:
    """The least of ``DEPTHS`` that holds all these values.

    Raises FedgeoError where half of the images are far below it, so that a few of them, or one bright mark, decide.
    """
    found, usual = _holding(int(greatest.max())), _holding(int(np.median(greatest)))
    if found - usual >= _UNLIKE:
        raise FedgeoError(
            f"{whose}: the greatest value in its 16-bit images is {greatest.max()}, half of them do not exceed "
            f"{int(np.median(greatest))}: set data.bit_depth to the bits that are used ({usual} or {found}), and "
            "convert those that use more or fewer"
        )
    return found


def _holding(value: int) -> int:
    return next((bits for bits in DEPTHS if value < 2**bits), FULL)


def with_bit_depth(source: Source, chosen: int | None, cache: Path | None) -> tuple[Source, int | None]:
    """The source with images that are scaled by one range, and how many bits that has; None where all are of 8 bits.

    chosen: ``data.bit_depth``; None where it is to be found. Raises FedgeoError where the set's domains do not agree on
    it, and where it cannot be told.
    """
    images = source.images
    if not isinstance(images, FileImages):
        return source, None
    greatest = greatest_values(images, cache)
    deep = greatest != _NONE
    if not deep.any():
        return source, None
    if chosen is None:
        chosen = _agreed(source, greatest, deep)
    elif (beyond := np.flatnonzero(greatest >= 2**chosen)).size:
        first = int(beyond[0])
        raise FedgeoError(
            f"{images.name(first)}: its greatest value is {greatest[first]}, data.bit_depth={chosen} allows "
            f"{2**chosen - 1}: set data.bit_depth={_holding(int(greatest.max()))}"
        )
    return replace(source, images=replace(images, bits=chosen)), chosen


def _agreed(source: Source, greatest: np.ndarray, deep: np.ndarray) -> int:
    found: dict[str, int] = {}
    for number, name in enumerate(source.domains):
        here = deep & (source.domain == number)
        if here.any():
            found[name] = bit_depth(greatest[here], name)
    if len(set(found.values())) > 1:
        low, high = (pick(found, key=lambda name: found[name]) for pick in (min, max))
        raise FedgeoError(
            f"16-bit images of domain {low} use {found[low]} bits, of domain {high} {found[high]}: set data.bit_depth="
            f"{found[high]} if one kind of camera made all, else convert those of {low} to 8 bits"
        )
    return next(iter(found.values()))


def note(bits: int | None, chosen: int | None) -> Sequence[str]:
    """What to say of a depth that was found and not chosen."""
    if bits is None or bits == FULL or chosen is not None:
        return ()
    return (
        f"16-bit images hold {bits}-bit values: scaled by {2**bits - 1} (where that is wrong, set data.bit_depth to "
        f"one of {', '.join(map(str, DEPTHS))})",
    )
