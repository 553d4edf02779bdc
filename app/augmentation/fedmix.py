"""FedMix (Yoon et al., 2021): clients share means of batches of their samples, and everyone mixes with them.

Each client cuts its embeddings into random batches of M and shares each batch's mean embedding and mean label. While
it trains, every sample x of class y meets a random shared pair (x', y'), and its loss l is the first-order expansion
of Mixup with the samples behind that mean,

    (1 - lambda) l(a, y) + lambda l(a, y') + lambda <dl/dx (a, y), x'>,    a = (1 - lambda) x.

This is the cited paper's FedMix, not its NaiveMix (plain Mixup with the means). Here x is an embedding, so that for a
linear head the expansion leaves out only the curvature of the softmax. A base method keeps its own terms: they are
taken at a. lambda = 0 is the base method.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..algorithms.base import Algorithm, Forward, Local, Trained, cross_entropy
from ..common.errors import FedgeoError
from ..common.received import MOST, bounded
from ..common.seeds import MIXING
from ..config.privacy import check_mixing, smallest_reported
from ..config.schema import Positive, Privacy
from ..geometry.class_statistics import field, refuse
from ..geometry.statistics_checks import SLACK
from ..models.base import Weights
from .augmented_set import AugmentedSet
from .base import Augmentation, Client, Population, Receiver, Sender
from .filling import SERVER


@dataclass(frozen=True)
class FedMixAugmentation(Augmentation):
    """mix: lambda, the share of the shared means in the mixture. mean_of: M, the embeddings a shared mean is over."""

    name: ClassVar[str] = "fedmix"

    mix: Annotated[float, Field(ge=0, lt=1)] = 0.1
    mean_of: Positive = 16

    def check(self, privacy: Privacy) -> None:
        check_mixing(privacy)

    def client_statistics(self, x: np.ndarray, y: np.ndarray, client: Client) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([client.seed, MIXING, client.number])
        minimum = smallest_reported(client.privacy)
        return batch_means(x, y, client.classes, self.mean_of, rng, minimum).to_arrays()

    def form(self, privacy: Privacy) -> dict[str, Any]:
        """Means of batches of two sizes differ by few samples."""
        return {"mean_of": max(self.mean_of, smallest_reported(privacy))}

    def read_statistics(self, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> "SharedMeans":
        return SharedMeans.from_arrays(arrays, classes, origin)

    def check_statistics(self, found: "SharedMeans", sender: Sender) -> None:
        most = int(sender.counts.sum()) if sender.exact else MOST
        if found.means.shape[1] != sender.dimension or len(found) > most:
            shown = f"{len(found)} means of dimension {found.means.shape[1]}"
            raise FedgeoError(f"{sender.name}: {shown} do not go with its hello")
        bounded(found.means, "means", sender.name)
        if bool((np.square(found.means, dtype=np.float64).sum(axis=1) > sender.largest * (1 + SLACK)).any()):
            raise FedgeoError(f"{sender.name}: it sends a mean that is longer than its embeddings can be")

    def merge(self, parts: Mapping[int, "SharedMeans"], clients: Population) -> "SharedMeans":
        """All clients' means, for everyone."""
        return pooled(parts.values())

    def read_shared(self, arrays: Mapping[str, np.ndarray], receiver: Receiver) -> "SharedMeans":
        found = SharedMeans.from_arrays(arrays, receiver.classes, "shared means")
        bounded(found.means, "means", SERVER)
        return found

    def training_set(
        self,
        x: np.ndarray,
        y: np.ndarray,
        shared: Any,
        *,
        classes: int,
        seed: int,
        client: int,
        own: Collection[int] | None = None,
    ) -> "MixedSet":
        if not isinstance(shared, SharedMeans):
            raise FedgeoError(f"client {client}: augmentation=fedmix needs the means that clients share")
        return MixedSet(AugmentedSet(x, y, classes=classes, seed=seed, client=client), shared)

    def objective(self, algorithm: Algorithm, classes: int) -> Algorithm:
        """FedMix's loss."""
        return Mixing(algorithm, self.mix, classes)


@dataclass(frozen=True, eq=False)
class SharedMeans:
    """means: float32 (m, p), mean embeddings. labels: float32 (m, C), the mean labels of the same samples."""

    means: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.means)

    def to_arrays(self, dtype: str = "float32") -> dict[str, np.ndarray]:
        """The fields by name, to be sent; rows of several clients may be joined along axis 0. dtype: of the floats."""
        return {"means": self.means.astype(dtype, copy=False), "labels": self.labels.astype(dtype, copy=False)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], classes: int, origin: str) -> "SharedMeans":
        """What ``to_arrays`` gave, checked. Raises FedgeoError, which begins with ``origin``, at the first fault."""
        means = field(arrays, "means", (None, None), "float", origin)
        labels = field(arrays, "labels", (len(means), classes), "float", origin)
        whole = bool((labels >= 0).all()) and np.allclose(labels.sum(axis=1), 1, atol=1e-4)
        refuse(not whole, origin, "each row of labels must be shares that add up to 1")
        return cls(means.astype(np.float32), labels.astype(np.float32))


def batch_means(
    x: np.ndarray, y: np.ndarray, classes: int, size: int, rng: np.random.Generator, minimum: int
) -> SharedMeans:
    """A client's means of random, disjoint batches of ``size`` samples, together all of its samples.

    x: (n, p), y: int (n,). Batches are cut evenly, so that none is smaller than ``size`` where n allows: a mean over
    fewer would say more of each sample. ``minimum``: the fewest samples that a mean may be over; a client with fewer
    shares none.
    """
    size = max(size, minimum)
    if len(x) < max(1, minimum):
        return SharedMeans(np.empty((0, x.shape[1]), np.float32), np.empty((0, classes), np.float32))
    batches = np.array_split(rng.permutation(len(x)), max(1, len(x) // size))
    labels = np.eye(classes)
    return SharedMeans(
        np.stack([x[rows].mean(axis=0, dtype=np.float64) for rows in batches]).astype(np.float32),
        np.stack([labels[y[rows]].mean(axis=0) for rows in batches]).astype(np.float32),
    )


def pooled(parts: Iterable[SharedMeans]) -> SharedMeans:
    """All clients' means together. Raises FedgeoError where nobody shared any."""
    parts = list(parts)
    if not sum(len(part) for part in parts):
        raise FedgeoError("augmentation=fedmix: no client has privacy.min_count samples to share a mean of: lower it")
    return SharedMeans(np.concatenate([part.means for part in parts]), np.concatenate([part.labels for part in parts]))


class MixedSet:
    """A client's own samples, each batch beside the pairs it is mixed with: x is (B, p + p + C), [x, x', y'].

    The pairs are drawn anew in every batch, in a stream of their own, so that samples are shuffled as without them.
    ``in_order`` gives the samples alone.
    """

    def __init__(self, own: AugmentedSet, shared: SharedMeans) -> None:
        if shared.means.shape[1] != own.dimension:
            raise FedgeoError(f"the shared means have dimension {shared.means.shape[1]}, the samples {own.dimension}")
        self.own = own
        self._pairs = torch.from_numpy(np.concatenate([shared.means, shared.labels], axis=1))

    def __len__(self) -> int:
        return len(self.own)

    @property
    def nbytes(self) -> int:
        """Bytes of the samples once they are materialised."""
        return self.own.nbytes

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in random order."""
        pairing = torch.Generator().manual_seed(zlib.crc32(generator.get_state().numpy().tobytes()))
        for x, y in self.own.batches(batch_size, generator):
            chosen = torch.randint(len(self._pairs), (len(y),), generator=pairing)
            yield torch.cat([x, self._pairs[chosen]], dim=1), y

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One unshuffled pass over the samples alone, (B, p)."""
        return self.own.in_order(batch_size)


@dataclass(frozen=True)
class Mixing(Algorithm):
    """The client's part of ``base`` with FedMix's loss, on batches of a MixedSet of ``classes`` classes.

    lambda_: the share of the means in the mixture, 0 <= lambda_ < 1.
    """

    base: Algorithm
    lambda_: float
    classes: int

    def client_state(self, weights: Weights) -> Weights:
        return self.base.client_state(weights)

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        p = (x.shape[-1] - self.classes) // 2
        samples, means, labels = x.split([p, p, self.classes], dim=-1)
        at = ((1 - self.lambda_) * samples).requires_grad_()
        logits = forward(weights, at).logits
        entropy = cross_entropy(logits, y)
        # per sample, for no sample's entropy depends on another's a
        (slope,) = torch.autograd.grad(entropy.sum(), at, create_graph=True)
        soft = -(labels * F.log_softmax(logits, dim=-1)).sum(-1)
        mixed = soft - entropy + (slope * means).sum(-1)
        return self.base.loss(forward, weights, at, y, local) + self.lambda_ * mixed

    def correct(self, gradients: Weights, weights: Weights, local: Local) -> Weights:
        return self.base.correct(gradients, weights, local)

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        return self.base.finish(trained, local)
