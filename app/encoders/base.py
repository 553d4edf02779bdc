"""What an encoder is: a frozen network that makes an embedding of an image.

An encoder has a ``fingerprint``, a hash of its architecture, weights and preprocessing. Two sites agree on the encoder
when their fingerprints agree; ``precision`` (float32 or bfloat16) is not part of it, since it changes an embedding by
less than the embeddings of two pictures of one thing differ (see :mod:`app.encoders.network`).
"""

from typing import Protocol

import torch
from PIL import Image


class Encoder(Protocol):
    """What turns images into embeddings of ``dimension`` numbers."""

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Hash of architecture, weights and preprocessing."""
        ...

    @property
    def precision(self) -> str:
        """float32 or bfloat16: what the weights are held in."""
        ...

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        """One 8-bit grey or RGB image as a float32 tensor, to be stacked into a batch."""
        ...

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        """Embeddings, float32 (B, p) on the CPU, of a batch of preprocessed images."""
        ...
