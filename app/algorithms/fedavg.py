"""FedAvg (McMahan et al., 2017): w = sum_k (n_k / n) w_k."""

from dataclasses import dataclass

from .base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD and the weighted mean. Which n_k counts is ``federation.weights``: real, augmented or equal."""
