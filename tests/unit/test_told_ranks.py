"""Covariances as they are sent: their ranks tell no more than the counts."""

import numpy as np
import pytest

from app.augmentation.base import packed
from app.config.privacy import RESEARCH, read_policy
from app.geometry.class_statistics import TRIANGLE, ClassStatistics, cut, gather

P = 24


def samples(*counts: int, p: int = P) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(sum(counts), p)), np.repeat(np.arange(len(counts)), counts)


def sent(*counts: int, p: int = P, policy: str = "site") -> ClassStatistics:
    bound = read_policy(None) if policy == "site" else RESEARCH
    return ClassStatistics.from_arrays(packed(gather(*samples(*counts, p=p)), bound, "float64"))


def rank(found: ClassStatistics, row: int) -> int:
    values = np.linalg.eigvalsh(found.covariance(row))
    return int(np.count_nonzero(values > 1e-9 * values[-1]))


def test_all_counts_that_are_told_alike_have_one_rank_and_one_form() -> None:
    """With p = 24 a covariance of 11 samples would go as a factor, of 12 as a triangle."""
    for counts in (range(10, 20), range(20, 30)):
        found = sent(*counts)
        assert len(set(found.counts.tolist())) == len(set(found.ranks.tolist())) == 1
        assert {rank(found, row) for row in range(len(found))} == {int(found.counts[0]) - 1}


def test_the_largest_eigenvalues_are_kept() -> None:
    x, y = samples(17)
    whole, found = gather(x, y).covariance(0), sent(17).covariance(0)
    values = np.linalg.eigvalsh(whole)[::-1]
    np.testing.assert_allclose(np.linalg.eigvalsh(found)[::-1][:9], values[:9])
    assert np.trace(found) == pytest.approx(values[:9].sum()) and np.trace(found) < np.trace(whole)


def test_enough_samples_are_sent_as_they_are() -> None:
    x, y = samples(35, 60, p=8)
    whole, found = gather(x, y), sent(35, 60, p=8)
    assert found.triangles.tobytes() == whole.triangles.tobytes() and found.counts.tolist() == [30, 60]
    assert (found.ranks == TRIANGLE).all()


def test_means_alone_stay_means_alone_and_research_sends_all() -> None:
    x, y = samples(14, 17)
    means = ClassStatistics.from_arrays(packed(gather(x, y, covariances=False), read_policy(None), "float64"))
    assert means.ranks.tolist() == [0, 0]
    assert sent(14, 17, policy="research").counts.tolist() == [14, 17]
    assert [rank(sent(14, 17, policy="research"), row) for row in (0, 1)] == [13, 16]


def test_samples_that_are_all_alike_do_not_show_by_their_rank() -> None:
    x = np.concatenate([np.zeros((10, P)), samples(10)[0]])
    found = cut(gather(x, np.repeat([0, 1], 10)), np.array([10, 10]))
    assert found.ranks.tolist() == [9, 9] and not found.covariance(0).any()
