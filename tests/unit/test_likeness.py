"""Figure 6 as figures: the same class's shapes in two domains, against an independent computation."""

import numpy as np
import pytest

from app.geometry.class_statistics import gather
from app.geometry.similarity import LEADING, between_domains

P, CLASSES = 8, 3


def samples(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes whose variance lies along different axes, (number, P), every class present."""
    labels = np.arange(number) % CLASSES
    spread = np.stack([np.roll(0.5 ** np.arange(P), 2 * label) for label in range(CLASSES)])
    return rng.normal(size=(number, P)) * spread[labels] + labels[:, None], labels


def by_hand(a: np.ndarray, b: np.ndarray) -> float:
    """Eq. 3 for the samples of one class in two domains."""
    leading = [np.linalg.eigh(np.cov(x, rowvar=False))[1][:, ::-1][:, :LEADING] for x in (a, b)]
    return float(sum(abs(leading[0][:, m] @ leading[1][:, m]) for m in range(LEADING)))


def test_figures_are_those_of_the_pooled_samples_of_each_domain() -> None:
    """Two clients in one domain and one in the other; a mixed client counts nowhere."""
    rng = np.random.default_rng(3)
    data = {k: samples(rng, n) for k, n in enumerate((60, 45, 90, 30))}
    parts = {k: gather(x, y) for k, (x, y) in data.items()}
    (pair,) = between_domains(parts, {0: "a", 1: "a", 2: "b", 3: None})
    pooled = np.concatenate([data[0][0], data[1][0]]), np.concatenate([data[0][1], data[1][1]])
    expected = np.array(
        [
            [by_hand(pooled[0][pooled[1] == i], data[2][0][data[2][1] == j]) for j in range(CLASSES)]
            for i in range(CLASSES)
        ]
    )
    assert pair.domains == ("a", "b") and pair.labels.tolist() == [0, 1, 2]
    assert np.allclose(pair.matrix, expected, atol=1e-8)
    off = expected[~np.eye(CLASSES, dtype=bool)]
    record = pair.record()
    assert record["same_class"] == pytest.approx(np.trace(expected) / CLASSES / LEADING)
    assert record["other_class"] == pytest.approx(off.mean() / LEADING)
    assert record["nearest_is_own"] == (expected.argmax(1) == np.arange(CLASSES)).mean()


def test_a_domain_is_most_like_itself() -> None:
    x, y = samples(np.random.default_rng(0), 90)
    part = gather(x, y)
    (pair,) = between_domains({0: part, 1: part}, {0: "a", 1: "b"})
    assert np.allclose(pair.matrix.diagonal(), LEADING) and pair.nearest == 1
    assert pair.same > pair.other


def test_classes_with_too_few_samples_are_left_out() -> None:
    """Five samples span four directions: no shape to compare."""
    rng = np.random.default_rng(1)
    x, y = samples(rng, 90)
    few = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:5], np.flatnonzero(y == 2)[:6]])
    (pair,) = between_domains({0: gather(x, y), 1: gather(x[few], y[few])}, {0: "a", 1: "b"})
    assert pair.labels.tolist() == [0, 2]


def test_one_domain_has_nothing_to_compare() -> None:
    x, y = samples(np.random.default_rng(2), 30)
    assert between_domains({0: gather(x, y), 1: gather(x, y)}, {0: "a", 1: "a"}) == []
    lone = gather(x[y == 0], y[y == 0]), gather(x[y == 1], y[y == 1])
    assert between_domains(dict(enumerate(lone)), {0: "a", 1: "b"}) == []


def test_one_shared_class_has_no_other() -> None:
    x, y = samples(np.random.default_rng(4), 60)
    one = gather(x[y == 1], y[y == 1])
    (pair,) = between_domains({0: one, 1: gather(x, y)}, {0: "a", 1: "b"})
    assert pair.labels.tolist() == [1] and np.isnan(pair.record()["other_class"])
