"""Class statistics that no embeddings can have are refused, and their sender is named."""

from dataclasses import replace

import numpy as np
import pytest

from app.augmentation.base import Sender
from app.augmentation.fedfa import FedFAAugmentation
from app.augmentation.fedmix import FedMixAugmentation, SharedMeans
from app.augmentation.ggeur import GGEURAugmentation
from app.augmentation.shift import ShiftAugmentation
from app.common.errors import FedgeoError
from app.geometry.class_statistics import ClassStatistics, gather
from app.geometry.gaussians import estimate
from app.geometry.statistics_checks import check_statistics

CLASSES = 2


def unit_samples(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of unit norm, round a mean; labels in turn."""
    rng = np.random.default_rng(n)
    x = (1 + 0.3 * rng.standard_normal((n, p))).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.arange(n) % CLASSES


def told(n: int, p: int, covariances: bool = True) -> ClassStatistics:
    """A client's statistics as they arrive: 8 samples a class are packed as factors, 40 as triangles."""
    x, y = unit_samples(n, p)
    return ClassStatistics.from_arrays(gather(x, y, covariances).to_arrays("float32"))


def check(found: ClassStatistics, largest: float = 1.0) -> None:
    check_statistics(found, found.counts, found.dimension, False, "client 4 (north)", largest)


@pytest.mark.parametrize("n", [16, 80])
def test_honest_statistics_of_unit_embeddings_pass(n: int) -> None:
    check(told(n, 32))
    check(told(n, 32, covariances=False))
    cut = told(n, 32)
    check(replace(cut, factors=0.5 * cut.factors, triangles=0.5 * cut.triangles))  # as where a policy cuts ranks


@pytest.mark.parametrize("n", [16, 80])
@pytest.mark.parametrize("factor", [1.01, 1e3, 1e6])
def test_too_large_a_mean_or_covariance_is_refused_by_name(n: int, factor: float) -> None:
    found = told(n, 32)
    with pytest.raises(FedgeoError, match=r"client 4 \(north\): .* class 0 have a mean squared norm .* unit norm"):
        check(replace(found, means=factor * found.means))
    wide = 1 + 100 * (factor - 1)
    with pytest.raises(FedgeoError, match=r"client 4 \(north\): .* class 0 have a mean squared norm"):
        check(replace(found, factors=wide * found.factors, triangles=wide * found.triangles))


def test_without_unit_norm_a_mean_of_a_million_is_its_own_clients_fault() -> None:
    found = told(16, 32)
    check(replace(found, means=1e3 * found.means), 1e9)
    with pytest.raises(FedgeoError, match="client 4 .* at most 1e\\+09"):
        check(replace(found, means=1e6 * found.means), 1e9)


def sender(largest: float = 1.0) -> Sender:
    return Sender("client 4", np.array([8, 8]), True, 32, largest)


@pytest.mark.parametrize("kind", [GGEURAugmentation, ShiftAugmentation, FedFAAugmentation])
def test_every_augmentation_by_class_checks_it(kind: type) -> None:
    augmentation = kind()
    x, y = unit_samples(16, 32)
    honest = gather(x, y, covariances=kind is GGEURAugmentation) if kind is not FedFAAugmentation else estimate(x, y)
    augmentation.check_statistics(honest, sender())
    with pytest.raises(FedgeoError, match="client 4: .*mean squared norm"):
        augmentation.check_statistics(replace(honest, means=10 * honest.means), sender())


def test_fedmix_refuses_means_that_are_too_long() -> None:
    x, _ = unit_samples(16, 32)
    honest = SharedMeans(x[:2], np.eye(2, dtype=np.float32))
    FedMixAugmentation().check_statistics(honest, sender())
    with pytest.raises(FedgeoError, match="client 4: it sends a mean that is longer"):
        FedMixAugmentation().check_statistics(SharedMeans(2 * x[:2], honest.labels), sender())
