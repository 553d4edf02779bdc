"""Centralised: one client holds all training samples. What federation can hope to reach, in as many epochs."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from .base import Algorithm


@dataclass(frozen=True)
class Centralised(Algorithm):
    """A round is one epoch, the optimiser keeps its moments, and the best validation checkpoint is what counts.

    patience: epochs without a better validation loss after which training stops.
    """

    patience: Annotated[int, Field(ge=1)] = 75

    keeps_manifold: ClassVar[bool] = True  # the mean of one client's weights is those weights
    centralised: ClassVar[bool] = True
