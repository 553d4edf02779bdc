"""The two classifiers that people use on covariances before any network: tangent space + linear, and MDM."""

import torch
from torch import Tensor, nn

from ..geometry.spd import spectral
from .base import Model, Output


class TangentSpace(Model):
    """Logits linear in the tangent vector of a covariance at a reference point.

    x: covariances (n, channels, channels), float64. The representation is vech(log(M^{-1/2} S M^{-1/2})) with
    off-diagonal entries times sqrt 2, so that its norm is the Riemannian distance from the mean M.
    Exchanged weights: ``mean`` (channels, channels), ``linear.weight``, ``linear.bias``.
    """

    inputs = "covariances"

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.eye(channels, dtype=torch.float64))
        features = channels * (channels + 1) // 2
        self.linear = nn.Linear(features, classes, dtype=torch.float64)
        self.reset(torch.Generator())

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """The identity and zeros: there is nothing to draw, for what is fitted does not depend on the start."""
        self.mean.copy_(torch.eye(len(self.mean)))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Output:
        vectors = tangent_vectors(x, self.mean)
        return Output(vectors, self.linear(vectors))

    def blank_input(self) -> Tensor:
        return torch.eye(len(self.mean), dtype=torch.float64)[None]


class MinimumDistance(Model):
    """MDM: a trial belongs to the class whose Riemannian mean is nearest; the logits are squared distances, negated.

    x: covariances (n, channels, channels), float64. Exchanged weights: ``means`` (classes, channels, channels).
    """

    inputs = "covariances"

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.empty(classes, channels, channels, dtype=torch.float64))
        self.reset(torch.Generator())

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """The identity for every class."""
        self.means.copy_(torch.eye(self.means.shape[-1]))

    def forward(self, x: Tensor) -> Output:
        whitening = spectral(self.means, torch.rsqrt)
        values = [torch.linalg.eigvalsh(w @ x @ w) for w in whitening]
        logits = -torch.stack([v.log().square().sum(-1) for v in values], dim=-1)
        return Output(logits, logits)

    def blank_input(self) -> Tensor:
        return torch.eye(self.means.shape[-1], dtype=torch.float64)[None]


def tangent_vectors(x: Tensor, mean: Tensor) -> Tensor:
    """Covariances (n, c, c) as tangent vectors at ``mean`` (c, c), isometrically: (n, c (c + 1) / 2)."""
    whitening = spectral(mean, torch.rsqrt)
    logarithms = spectral(whitening @ x @ whitening, torch.log)
    rows, columns = torch.triu_indices(*mean.shape)
    return logarithms[:, rows, columns] * torch.where(rows == columns, 1.0, 2.0**0.5).to(x.dtype)
