"""GGEUR: statistics up, geometric shapes down, then the rounds of any base strategy."""

from typing import Any, Literal

from flwr.serverapp.strategy import Strategy

from ..augmentation.ggeur import GGEURAugmentation
from ..common.settings import make
from .augmented import AugmentedStrategy


class GGEUR(AugmentedStrategy):
    """The paper's method (Algorithms 1 and 2) round ``base``: ``GGEUR(FedAvg())``.

    target: the samples that every class of a client is filled up to. absent: what a client does with a class that it
    does not hold. scale, explained, max_rank, covariance: of the shapes. step2, per_prototype: samples round other
    domains' class means. precision: of the floats that clients send. See augmentation/ggeur.py and filling.py.
    federation: all that ``FedgeoStrategy`` takes.

    Raises FedgeoError that names the setting, for a value out of its range.
    """

    def __init__(
        self,
        base: Strategy,
        *,
        target: int = 50,
        absent: Literal["global_mean", "skip"] = "global_mean",
        scale: Literal["sqrt", "lambda"] = "sqrt",
        explained: float = 0.95,
        max_rank: int | None = None,
        covariance: Literal["total", "within"] = "total",
        step2: bool = False,
        per_prototype: int = 500,
        precision: Literal["float32", "float64"] = "float32",
        **federation: Any,
    ) -> None:
        chosen = {
            "target": target,
            "absent": absent,
            "scale": scale,
            "explained": explained,
            "max_rank": max_rank,
            "covariance": covariance,
            "step2": step2,
            "per_prototype": per_prototype,
            "precision": precision,
        }
        super().__init__(base, make(GGEURAugmentation, "augmentation", chosen), **federation)
