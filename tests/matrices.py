"""Made matrices: Gaussian ones, covariances, symmetric ones of a given spectrum; and slopes by differences."""

from collections.abc import Callable

import torch
from torch import Tensor

from app.geometry.stiefel import random_stiefel


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def covariances(n: int, c: int, seed: int, scale: float = 3.0) -> Tensor:
    x = normal(n, c, 5 * c, seed=seed)
    return scale * x @ x.mT / (5 * c)


def with_eigenvalues(values: list[float], seed: int = 0) -> Tensor:
    u = random_stiefel(len(values), len(values), generator(seed))
    s = u * torch.tensor(values, dtype=torch.float64) @ u.mT
    return 0.5 * (s + s.mT)


def differences(f: Callable[[Tensor], Tensor], x: Tensor, h: float) -> Tensor:
    """Central differences of a scalar function, entry by entry."""
    result = torch.zeros_like(x)
    for i in range(x.numel()):
        e = torch.zeros(x.numel(), dtype=x.dtype)
        e[i] = h
        e = e.view_as(x)
        result.view(-1)[i] = (f(x + e) - f(x - e)) / (2 * h)
    return result
