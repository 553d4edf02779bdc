"""How every kind of image file becomes plain grey or RGB of 8 bits a channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from ...common.errors import FedgeoError

FULL = 16  # bits of the values that a file of more than 8 bits a channel can hold
_ORIENTATION = 0x0112  # the EXIF tag
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a TIFF's tag, and the value that Pillow heeds up to 8 bits only
_RAW = ("PNG", "TIFF")  # whose 16-bit values come as stored; of PGM and JPEG 2000 the decoder brings them to 16 bits


def open_image(content: Path | IO[bytes], name: str, bits: int = FULL) -> Image.Image:
    """Decode an image to mode L (grey) or RGB, 8 bits a channel, the right way up.

    Grey stays grey. 16-bit grey is scaled by the full range of ``bits`` (16: value / 257), palettes and CMYK become
    RGB, transparent pixels lie over white, the first frame of an animation counts, and the EXIF orientation is applied.
    Raises FedgeoError naming the image where it cannot be read, has no defined range (32-bit, floating point) or holds
    values of more than ``bits``, and for a TIFF that stacks several images of one size.
    """
    with _opened(content, name) as image:
        _check_single(image)
        deep, white_is_zero = _deep(image), _inverted(image)  # which loading forgets
        image.load()
        upright = ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image
        if upright.mode.startswith("I"):
            return _grey(upright, bits if deep else FULL, white_is_zero)
        if deep and bits < FULL:
            raise ValueError(
                f"16 bits a channel in colour, {bits} of them used, and only the upper 8 can be read: convert it to "
                "8 bits a channel"
            )
        return _eight_bits(upright)


def greatest_value(content: Path | IO[bytes], name: str) -> int | None:
    """The greatest value in a PNG or TIFF of 16 bits a channel, None for other images, whose range is known.

    Of colour only the upper byte is read, so that the value is the greatest that there can be.
    """
    with _opened(content, name) as image:
        if not _deep(image):
            return None
        image.load()
        if image.mode.startswith("I"):
            return int(np.asarray(image).max())
        colour = [band for band in image.getbands() if band != "A"]
        return max(int(np.asarray(image.getchannel(band)).max()) for band in colour) << 8 | 255


@contextmanager
def _opened(content: Path | IO[bytes], name: str) -> Iterator[Image.Image]:
    try:
        with Image.open(content) as image:
            yield image
    except FileNotFoundError as fault:
        raise FedgeoError(f"{name}: the image is gone: put it back or load the data anew") from fault
    except Exception as fault:  # decoders raise almost anything on a damaged file
        reason = " ".join(str(fault).split())
        raise FedgeoError(
            f"{name}: not a readable image ({reason}): repair it, or move it out of the folder"
        ) from fault


def _check_single(image: Image.Image) -> None:
    """Refuse a stack, whose first image would stand for all. A second image of another size is a preview."""
    frames = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    if frames > 1:
        first = image.size
        image.seek(1)
        if image.size == first:
            raise ValueError(f"a stack of {frames} images: save the one that is meant as a file of its own")
        image.seek(0)


def _deep(image: Image.Image) -> bool:
    """Whether a file that was opened holds 16-bit values of which it does not say how many bits are used."""
    tiles = getattr(image, "tile", ())
    return image.format in _RAW and (image.mode.startswith("I") or any(";16" in str(tile[3]) for tile in tiles))


def _inverted(image: Image.Image) -> bool:
    tags = getattr(image, "tag_v2", {})
    return image.mode.startswith("I") and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO


def _grey(image: Image.Image, bits: int, white_is_zero: bool) -> Image.Image:
    values, top = np.asarray(image).astype(np.int64), 2**bits - 1
    if values.min() < 0 or values.max() > 2**FULL - 1:
        raise ValueError("32-bit values; 8 or 16 bits are supported")
    if values.max() > top:
        raise ValueError(f"its greatest value is {values.max()}, data.bit_depth={bits} allows {top}")
    if white_is_zero:
        values = top - values
    return Image.fromarray(((values * 255 + top // 2) // top).astype(np.uint8))


def _eight_bits(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point values; 8 or 16 bits are supported")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
