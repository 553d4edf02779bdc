"""What an attack is: what a hostile client does to its labels, its class statistics and the weights that it sends.

Attacks are for simulations, to try what a rule withstands: a site refuses them. A hostile client keeps to the protocol
(what breaks it is refused by the server's checks) and lies about what it has learned, and about how much it holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..geometry.class_statistics import ClassStatistics
from ..models.base import Weights

Changed = Literal["labels", "statistics", "weights"]
Times = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Attack:
    """The settings of one attack. A subclass overrides what it does; this one does nothing.

    name: that of its file. changes: what of a client it changes; a run without such is refused. together: whether
    hostile clients know what the others of them have learned. least: the fewest of them that it needs.
    """

    name: ClassVar[str]
    changes: ClassVar[Changed]
    together: ClassVar[bool] = False
    least: ClassVar[int] = 1

    @property
    def claimed(self) -> int:
        """How many times its samples a hostile client says it has."""
        return 1

    def labels(self, y: np.ndarray, classes: int) -> np.ndarray:
        """What its labels y int64 (n,) are called, in statistics and in training."""
        return y

    def statistics(self, found: ClassStatistics) -> ClassStatistics:
        """What it sends in the place of its class statistics; counts stay."""
        return found

    def weights(self, start: Weights, learned: Mapping[int, Weights], client: int, rng: np.random.Generator) -> Weights:
        """What it sends in the place of its weights. start: the global w_t.

        learned: by client what it has trained; with ``together`` that of all hostile clients.
        """
        return learned[client]
