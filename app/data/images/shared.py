"""Images that are both trained and tested on: scores are too good then."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...encoders.embedding_cache import Shards, decoding_threads, remembered
from ...encoders.images import Images


def shared_images(
    images: Images, training: Sequence[int] | np.ndarray, testing: Sequence[int] | np.ndarray, cache: Path | None
) -> list[tuple[int, int]]:
    """(test image, training image) of each test image whose pixels a training image has too, whatever its file format.

    cache: a folder that remembers digests of pixels by path, size and time of modification. Raises FedgeoError naming
    an image that cannot be read.
    """

    def digest(index: int) -> bytes:
        picture = images[index].convert("RGB")
        return hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).digest()

    wanted = [*map(int, training), *map(int, testing)]
    with decoding_threads() as pool:
        if cache is None:
            digests = list(pool.map(digest, wanted))
        else:
            digests = remembered(images, wanted, digest, Shards(cache / "pixels", np.dtype((np.uint8, 32))), pool)
    trained = dict(zip(digests[: len(training)], wanted, strict=False))
    tested = zip(wanted[len(training) :], digests[len(training) :], strict=True)
    return [(index, trained[key]) for index, key in tested if key in trained]
