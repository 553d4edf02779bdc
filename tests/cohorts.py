"""Clients for the batched loop of local training and for the plain one, and what must be the same of both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from app.algorithms.base import Algorithm, Local
from app.algorithms.fedavg import FedAvg
from app.algorithms.fedavgm import FedAvgM
from app.algorithms.feddyn import FedDyn
from app.algorithms.fedntd import FedNTD
from app.algorithms.fedopt import FedOpt
from app.algorithms.fedproto import FedProto
from app.algorithms.fedprox import FedProx
from app.algorithms.local_only import LocalOnly
from app.algorithms.moon import Moon
from app.algorithms.scaffold import Scaffold
from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.fedmix import MixedSet, Mixing, SharedMeans
from app.geometry.class_geometry import geometry
from app.geometry.class_statistics import gather, merge
from app.models.base import Weights
from app.models.linear import Head
from app.training import cohort, plain
from app.training.cohort import CohortClient
from app.training.plain import LocalResult, LocalSettings
from app.training.samples import TensorSet
from tests.augmented import augmented_set

P, C = 7, 4
SETTINGS = LocalSettings(epochs=3, batch_size=8, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
METHODS = [
    FedAvg(),
    FedAvgM(),
    FedOpt(),
    LocalOnly(),
    FedProx(mu=0.5),
    Scaffold(),
    FedDyn(alpha=0.3),
    Moon(mu=2.0),
    FedNTD(),
    FedProto(),
    Mixing(FedAvg(), 0.3, C),
    Mixing(Moon(mu=2.0), 0.3, C),
    Mixing(Scaffold(), 0.3, C),
]
SIZES = (9, 1, 24, 8, 17)


def name(value: Any) -> str:
    return repr(value) if isinstance(value, Algorithm) else str(value)


def weights(dtype: torch.dtype, *, seed: int) -> Weights:
    g = torch.Generator().manual_seed(seed)
    return {
        "linear.weight": torch.randn(C, P, generator=g, dtype=dtype),
        "linear.bias": torch.randn(C, generator=g, dtype=dtype),
    }


def tensors(sizes: Sequence[int], dtype: type = np.float32) -> list[TensorSet]:
    rng = np.random.default_rng(0)
    return [TensorSet(rng.standard_normal((n, P)).astype(dtype), rng.integers(0, C, n)) for n in sizes]


def augmented(kind: str, *, step2: bool = False) -> list[AugmentedSet]:
    """Clients of unequal size and skewed labels; augmented, they hold between 12 and 100 samples."""
    rng = np.random.default_rng(1)
    own = [(rng.standard_normal((n, P)).astype(np.float32), rng.integers(0, 1 + k, n)) for k, n in enumerate(SIZES[:4])]
    parts = {k: gather(x, y) for k, (x, y) in enumerate(own)}
    chosen = {} if kind == "none" else {"target": 5, "step2": step2, "per_prototype": 3}
    shapes = geometry(merge(parts.values()), prototypes=parts if step2 else None)
    return [augmented_set(kind, x, y, shapes, classes=C, seed=3, client=k, **chosen) for k, (x, y) in enumerate(own)]


def mixed(sets: Sequence[AugmentedSet]) -> list[MixedSet]:
    rng = np.random.default_rng(2)
    means = SharedMeans(rng.standard_normal((6, P)).astype(np.float32), rng.dirichlet(np.ones(C), 6).astype(np.float32))
    return [MixedSet(each, means) for each in sets]


class Doubled:
    """A set whose samples are float64."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def batches(self, batch_size: int, generator: torch.Generator) -> Any:
        return ((x.double(), y) for x, y in self.inner.batches(batch_size, generator))

    def in_order(self, batch_size: int) -> Any:
        return ((x.double(), y) for x, y in self.inner.in_order(batch_size))


def local(algorithm: Algorithm, k: int, dtype: torch.dtype, *, first: bool = False) -> Local:
    """What client k begins with: in a later round, state and shared tensors that are not zero."""
    start = weights(dtype, seed=100 + k if isinstance(algorithm, LocalOnly) else 1)
    inner = algorithm.base if isinstance(algorithm, Mixing) else algorithm
    auxiliary: Weights = {}
    if isinstance(inner, Scaffold):
        auxiliary = weights(dtype, seed=3)
    if isinstance(inner, FedProto) and not first:
        g = torch.Generator().manual_seed(4)
        auxiliary = {
            "prototype": torch.randn(C, C, generator=g, dtype=dtype),
            "known": torch.tensor([1.0, 0, 1, 1], dtype=dtype),
        }
    stateful = bool(algorithm.client_state(start)) and not first
    return Local(start, auxiliary, weights(dtype, seed=10 + k) if stateful else {})


def order(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(50 + k)


def one_by_one(
    sets: Sequence[Any], algorithm: Algorithm, chosen: LocalSettings, locals_: Sequence[Local]
) -> list[LocalResult]:
    dtype = locals_[0].start["linear.weight"].dtype
    return [
        plain.train(Head(P, C).to(dtype), data, algorithm, locals_[k], chosen, order(k)) for k, data in enumerate(sets)
    ]


def together(
    sets: Sequence[Any], algorithm: Algorithm, chosen: LocalSettings, locals_: Sequence[Local]
) -> list[LocalResult]:
    found = cohort.train([CohortClient(d, locals_[k], order(k)) for k, d in enumerate(sets)], algorithm, chosen)
    return [result for result in found if isinstance(result, LocalResult)]


def assert_same(ours: Sequence[LocalResult], reference: Sequence[LocalResult], tolerance: float) -> None:
    assert len(ours) == len(reference) > 0
    for a, b in zip(ours, reference, strict=True):
        assert a.steps == b.steps
        assert a.loss == pytest.approx(b.loss, rel=tolerance)
        for tree, other in (
            (a.weights, b.weights),
            (a.auxiliary, b.auxiliary),
            (a.state, b.state),
            (a.moments, b.moments),
        ):
            assert tree.keys() == other.keys()
            for key, value in other.items():
                assert tree[key].dtype == value.dtype
                assert torch.linalg.vector_norm(tree[key] - value) <= tolerance * torch.linalg.vector_norm(value), key
