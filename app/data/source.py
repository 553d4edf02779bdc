"""What a data set holds before it is split among clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError
from ..encoders.images import Images

UNSET, TRAIN, VAL, TEST = -1, 0, 1, 2


class Blocks:
    """Embeddings (n, p) that lie in blocks one after the other, mapped from a file perhaps; rows are copied on demand.

    dtype: float16 where all blocks have it, else float32.
    """

    def __init__(self, blocks: Sequence[np.ndarray]) -> None:
        self.blocks = tuple(blocks)
        self.starts = np.cumsum([0, *map(len, blocks)])
        self.shape = (int(self.starts[-1]), int(blocks[0].shape[1]))
        self.dtype = np.dtype(np.float16 if all(block.dtype == np.float16 for block in blocks) else np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """The rows (an index, a mask or a slice), (len(rows), p)."""
        wanted = np.arange(len(self))[rows]
        out = np.empty((len(wanted), self.shape[1]), self.dtype)
        for start, block in zip(self.starts, self.blocks, strict=False):
            here = (wanted >= start) & (wanted < start + len(block))
            out[here] = block[wanted[here] - start]
        return out


@dataclass(frozen=True)
class Source:
    """Labelled samples with their domains, in a fixed order that every process reproduces.

    labels: int64 (n,), an index into ``classes``. domain: int64 (n,), an index into ``domains``.
    split: int8 (n,), TRAIN, VAL or TEST where the set comes with one, UNSET where it does not.
    Exactly one of ``features`` (n, p) and ``images`` (length n) is given.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    labels: np.ndarray
    domain: np.ndarray
    split: np.ndarray
    features: np.ndarray | Blocks | None = None
    images: Images | None = None

    def __post_init__(self) -> None:
        if (self.features is None) == (self.images is None):
            raise FedgeoError(f"{self.name}: exactly one of features and images must be given")
        content: Sequence | Images | np.ndarray | Blocks = self.features if self.features is not None else self.images  # type: ignore[assignment]
        sizes = {len(self.labels), len(self.domain), len(self.split), len(content)}
        if len(sizes) != 1:
            raise FedgeoError(f"{self.name}: labels, domains, split and samples differ in number: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.labels)
