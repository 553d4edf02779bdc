"""Dropout that draws from a generator of its own, so that a seed gives the same training everywhere."""

import torch
from torch import Tensor


def drop(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """x with ``share`` of its entries at zero and the others scaled up, so that the mean stays.

    generator: on any device; the masks follow. RuntimeError without one.
    """
    if share == 0:
        return x
    if generator is None:
        raise RuntimeError("a model in training mode draws dropout from model.generator: set it before training")
    kept = torch.rand(x.shape, generator=generator, device=generator.device) >= share
    return x * kept.to(x.device) / (1 - share)
