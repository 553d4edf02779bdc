"""Images to embeddings: decoded ahead and encoded in batches, against image after image."""

import numpy as np
import torch
from PIL import Image

from app.embeddings import embed
from app.encoders import efficientnet_lite0
from app.errors import FedgeoError
from scripts.benchmarks.pair import Pair

IMAGES, SIDE, BATCH = 64, 320, 32


class Photographs:
    """Images in memory that look like photographs to a codec: smooth, with some noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)
        self.images = [Image.fromarray(each).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for each in coarse]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:
        return self.images[index]

    def digest(self, index: int) -> str:
        return f"{index:064x}"

    def name(self, index: int) -> str:
        return f"image {index}"


def encode() -> list[Pair]:
    """EfficientNet-Lite0 on the CPU, without a cache."""
    images = Photographs()
    try:
        encoder = efficientnet_lite0(device="cpu", precision="float32")
    except (FedgeoError, ImportError) as error:
        raise FedgeoError(f"encode needs a pretrained encoder: {error}") from None

    def ours() -> np.ndarray:
        return embed(images, np.arange(IMAGES), encoder, cache=None, batch_size=BATCH)

    def one_by_one() -> np.ndarray:
        parts = [encoder.encode(encoder.preprocess(images[i])[None]) for i in range(IMAGES)]
        return torch.cat(parts).numpy()

    def agree() -> None:
        np.testing.assert_allclose(ours(), one_by_one(), rtol=1e-3, atol=1e-4)

    return [
        Pair(
            f"{IMAGES} images of {SIDE} x {SIDE} by {encoder.name}, batches of {BATCH}; against one image at a time",
            lambda: ours,
            lambda: one_by_one,
            agree,
            pairs=5,
            warm_up=1,
        )
    ]
