"""Which clients a node hosts, and which of them train side by side."""

import numpy as np

from ..config.schema import Config
from ..models import registry as models
from ..training.cohort import chunk_size


def hosted(clients: int, place: int, places: int, together: int = 1) -> list[int]:
    """The clients of node ``place`` of ``places``: neighbours, as evenly as possible.

    together: clients of a chunk, all of which are on one node.
    """
    chunks = np.array_split(np.arange(-(-clients // together)), places)[place]
    return [c for chunk in chunks for c in range(chunk * together, min(clients, (chunk + 1) * together))]


def together(config: Config, clients: int) -> int:
    """How many neighbours are trained side by side; 1 for the plain loop, which trains all but linear heads by SGD."""
    linear = models.load(config.model).is_linear_head
    batched = config.training.loop == "cohort" and linear and config.training.optimiser == "sgd"
    return chunk_size(clients) if batched else 1
