"""scale=lambda depends on the unit of the embeddings: what a run says where it suits them not."""

import numpy as np
import pytest

from app.augmentation.filling import norm_rms
from app.augmentation.ggeur import GGEURAugmentation
from app.geometry.class_geometry import Geometry, geometry
from app.geometry.class_statistics import gather, merge


def shapes(scale: float) -> tuple[Geometry, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (scale * (np.eye(3, 12)[np.arange(90) % 3] + 0.1 * rng.normal(size=(90, 12)))).astype(np.float32)
    y = np.arange(90) % 3
    return geometry(merge([gather(x[:40], y[:40]), gather(x[40:], y[40:])]), explained=1.0), x


@pytest.mark.parametrize("scale", [0.3, 20.0])
def test_the_norm_is_that_of_all_samples(scale: float) -> None:
    found, x = shapes(scale)
    assert norm_rms(found) == pytest.approx(float(np.sqrt(np.square(x, dtype=np.float64).sum(axis=1).mean())), rel=1e-5)


def test_less_than_a_hundredth_and_more_than_all_of_the_norm_are_told() -> None:
    found, _ = shapes(1.0)
    norm = norm_rms(found)
    told = {
        share: GGEURAugmentation(scale="lambda").warning(found, share * norm) for share in (0.0099, 0.0101, 0.99, 1.01)
    }
    assert told[0.0101] is None and told[0.99] is None
    assert "0.99 % of the samples' norm" in str(told[0.0099]) and "next to nothing is drawn" in str(told[0.0099])
    assert "101 % of the samples' norm" in str(told[1.01]) and "drown" in str(told[1.01])


def test_a_true_gaussian_and_what_is_not_perturbed_are_not_warned_of() -> None:
    found, _ = shapes(1.0)
    assert GGEURAugmentation(scale="sqrt").warning(found, 100.0) is None
    assert GGEURAugmentation(scale="lambda").warning(found, 0.0) is None
