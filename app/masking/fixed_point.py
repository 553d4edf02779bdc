"""Real numbers as integers modulo 2^64, so that masks hide them wholly and their sums are exact."""

from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError

WORD = 64


@dataclass(frozen=True)
class FixedPoint:
    """x is held as round(x * 2^bits) modulo 2^64.

    bits: of the fraction, so that a number is off by at most 2^-(bits + 1). terms: how many numbers a sum has at most;
    each is bounded so that the sum cannot wrap around.
    """

    bits: int
    terms: int

    def __post_init__(self) -> None:
        if not 0 <= self.bits < WORD - 1 or self.terms < 1 or self.bound <= 0:
            raise ValueError(f"{self.bits} bits of fraction leave no room for sums of {self.terms} numbers")

    @property
    def bound(self) -> float:
        """The largest absolute value of a number, such that ``terms`` of them stay below 2^63 in all."""
        largest = (2 ** (WORD - 1) - 1) // self.terms
        # as a float that is not above it, and with a float's 53 digits
        return float(np.nextafter(float(largest), 0)) / 2**self.bits

    def encode(self, x: np.ndarray, what: str = "values") -> np.ndarray:
        """uint64 of the shape of ``x``, real. Raises FedgeoError for what is not finite or beyond the bound.

        what: names ``x`` in errors.
        """
        x = np.asarray(x, dtype=np.float64)
        if not np.isfinite(x).all():
            raise FedgeoError(f"{what}: masked sums need finite numbers, there are NaN or infinite ones")
        if x.size and (largest := float(np.abs(x).max())) > self.bound:
            raise FedgeoError(
                f"{what}: {largest:.3g} is beyond {self.bound:.3g}, the most that a masked sum of {self.terms} clients "
                "holds: normalise the embeddings (encoder.normalise=l2), or run without privacy.masked"
            )
        return np.rint(np.ldexp(x, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """float64 of the shape of ``total``, uint64: a number, or the sum of at most ``terms`` of them."""
        return np.ldexp(np.asarray(total, dtype=np.uint64).view(np.int64).astype(np.float64), -self.bits)
