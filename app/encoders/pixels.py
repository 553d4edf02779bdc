"""The image itself as its embedding."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..common.errors import FedgeoError


@dataclass(frozen=True)
class Pixels:
    """The image itself, grey, averaged down to ``size`` x ``size`` and flattened; values 0..1."""

    size: int = 8
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise FedgeoError(f"encoder.size must be at least 1, not {self.size}")

    @property
    def name(self) -> str:
        return f"pixels-{self.size}"

    @property
    def dimension(self) -> int:
        return self.size**2

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        small = image.convert("L").resize((self.size, self.size), Image.Resampling.BOX)
        return torch.from_numpy(np.asarray(small, np.float32) / 255)

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.reshape(len(batch), -1)


def build(*, device: str, precision: str, **settings: Any) -> Pixels:
    """``Pixels`` with its settings; there is nothing to compute on a device, or in another precision."""
    return Pixels(**settings)
