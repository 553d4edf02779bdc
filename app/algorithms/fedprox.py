"""FedProx (Li et al., 2020): a spring that holds every client near the global weights.

Client:  minimise  F_k(w) + mu/2 ||w - w_t||^2,  whose gradient is  g + mu (w - w_t).
Server:  w_{t+1} = sum_k (n_k / n) w_k.

mu = 0 is FedAvg.
"""

from dataclasses import dataclass

from .base import Algorithm, NonNegative


@dataclass(frozen=True)
class FedProx(Algorithm):
    """mu: strength of the proximal term. The term enters as its gradient, so the reported loss leaves it out."""

    mu: NonNegative = 0.01

    @property
    def proximal_weight(self) -> float:
        return self.mu
