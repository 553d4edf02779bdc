"""What an encoder reads: images that are opened one at a time."""

from typing import Protocol

from PIL import Image


class Images(Protocol):
    """A sequence of images that are opened one at a time, when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Image.Image:
        """The image at ``index``, decoded. Raises FedgeoError naming the file if it cannot be read."""
        ...

    def name(self, index: int) -> str:
        """What to call the image in an error message (its path, or its place in the archive)."""
        ...

    def digest(self, index: int) -> str:
        """A hash of the image's content, the key of the embedding cache."""
        ...
