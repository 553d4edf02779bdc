"""Shift: class means up, the domains' shifts down; each client translates its own samples into the other domains."""

from typing import Any, Literal

from flwr.serverapp.strategy import Strategy

from ..augmentation.shift import ShiftAugmentation
from ..common.settings import make
from .augmented import AugmentedStrategy


class Shift(AugmentedStrategy):
    """Domain-shift transfer round ``base``: ``Shift(FedAvg())``. Every client must hold one domain, not all the same.

    target: the samples that every class of a client is filled up to. absent: what a client does with a class that it
    does not hold. step2, per_prototype: also translate towards other domains' class means. noise: also perturb along
    the classes' shapes, of which scale, explained, max_rank, covariance speak. precision: of the floats that clients
    send. See augmentation/shift.py and filling.py. federation: all that ``FedgeoStrategy`` takes.

    Raises FedgeoError that names the setting, for a value out of its range.
    """

    def __init__(
        self,
        base: Strategy,
        *,
        target: int = 50,
        absent: Literal["global_mean", "skip"] = "global_mean",
        step2: bool = False,
        per_prototype: int = 500,
        noise: bool = False,
        scale: Literal["sqrt", "lambda"] = "sqrt",
        explained: float = 0.95,
        max_rank: int | None = None,
        covariance: Literal["total", "within"] = "total",
        precision: Literal["float32", "float64"] = "float32",
        **federation: Any,
    ) -> None:
        chosen = {
            "target": target,
            "absent": absent,
            "step2": step2,
            "per_prototype": per_prototype,
            "noise": noise,
            "scale": scale,
            "explained": explained,
            "max_rank": max_rank,
            "covariance": covariance,
            "precision": precision,
        }
        super().__init__(base, make(ShiftAugmentation, "augmentation", chosen), **federation)
