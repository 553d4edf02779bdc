"""Class statistics where some sites may lie: caps on what a site counts, robust merging, who is far from the others.

Everything is by class, over the sites that hold it. With r the median of their means, coordinate by coordinate, and s^2
the median of tr(Sigma_k) + |m_k - r|^2, a site's statistics of the class are one point, its matrix of moments

    M_k = E z z^T,  z = (1, (x - r) / s),

which holds d_k = (m_k - r) / s and Sigma_k / s^2 + d_k d_k^T. A mixture of sites has the mixture of their matrices, so
that any convex combination sum_k a_k M_k is Eq. 4 with a_k in the place of N_k / N. Distances are Frobenius norms. The
median of a class is the geometric median, the M with the least sum_k w_k |M - M_k|, w_k = min(N_k, median of the N):
such a combination (Weiszfeld), whatever a minority of the weight sends.

``median``: all sites' statistics of a class become its median. ``clip``: a site that is farther from it than tau, the
median of all sites' distances, becomes its mixture with it at distance tau, and is then merged by its counts. Both need
a majority of honest holders of EVERY class: where labels are so skewed that few hold a class, one hostile site may be
most of them. Of one or two holders neither can tell who lies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np

from .class_statistics import TRIANGLE, ByClass, ClassStatistics, merge

Kind = TypeVar("Kind", bound=ByClass)
Robust = Literal["none", "clip", "median"]
FAR = 3.0  # times the usual distance, or spread, from which a site is called far from the others
LEAST = 3  # holders of a class, below which nobody can be told from the others
STEPS, CLOSE = 500, 1e-7  # of Weiszfeld's iteration: how many at most, and the step that ends it


def capped(weights: np.ndarray, most: float | None) -> np.ndarray:
    """``weights`` (n,), each at most ``most`` times their median; as they are where ``most`` is None."""
    return weights if most is None or not len(weights) else np.minimum(weights, most * np.median(weights))


def combination(gram: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The geometric median of n points as a convex combination of them, float64 (n,).

    gram: (n, n), the points' inner products. weights: (n,), not negative, not all 0. Weiszfeld's iteration from the
    weighted mean, until a step is CLOSE to nothing beside the usual distance. Distances below a floor count as that, so
    that a point may itself be the median.
    """
    share = weights / weights.sum()
    norms = np.sqrt(gram.diagonal())
    floor = 1e-9 * float(np.median(norms)) + 1e-15 * float(norms.max()) + 1e-150
    found = share
    for _ in range(STEPS):
        away = np.maximum(distances(gram, found), floor)
        pull = share / away
        before, found = found, pull / pull.sum()
        step = found - before
        if step @ gram @ step <= (CLOSE * float(np.median(away))) ** 2:
            break
    return found


def distances(gram: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """float64 (n,): of each point from the combination of all with these shares, from their inner products."""
    towards = gram @ shares
    return np.sqrt(np.maximum(gram.diagonal() - 2 * towards + shares @ towards, 0.0))


def geometric_median(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The point with the least sum of weighted distances to ``points`` (n, d); float64 (d,). weights: (n,)."""
    points = points.astype(np.float64)
    offset = np.median(points, axis=0)
    centred = points - offset
    return np.asarray(offset + combination(centred @ centred.T, weights) @ centred)


def tempered(parts: Mapping[int, ClassStatistics], how: Robust) -> dict[int, ClassStatistics]:
    """The sites' statistics as ``how`` has them merged. parts: by site; at least one, all of one dimension.

    ``none``: as they are. ``clip``: of every site, with its own counts. ``median``: of all together, under the first
    site's number, with the sum of their counts.
    """
    if how == "none":
        return dict(parts)
    rows: dict[int, list[ClassStatistics]] = {site: [] for site in parts}
    first = min(parts)
    for held in _by_class(parts):
        own = {site: part.only(np.arange(len(part)) == row) for site, part, row in held}
        clean, away = _median(list(own.values()))
        if how == "median":
            rows[first].append(clean)
            continue
        radius = float(np.median(away))
        for (site, told), far in zip(own.items(), away, strict=True):
            rows[site].append(told if far <= radius else _mixture(told, clean, radius / far))
    if how == "median":
        return {first: joined(rows[first], parts[first])}
    return {site: joined(own, parts[site]) for site, own in rows.items()}


def joined(rows: Sequence[ClassStatistics], like: ClassStatistics) -> ClassStatistics:
    """Statistics of different classes, in their order, as one; none of any class where there are none."""
    rows = [*rows] or [like.only(np.zeros(len(like), dtype=bool))]
    fields = ("classes", "counts", "means", "ranks", "triangles", "factors")
    return ClassStatistics(*(np.concatenate([getattr(row, name) for row in rows]) for name in fields))


def far_from_others(parts: Mapping[int, ByClass]) -> dict[int, tuple[int, str]]:
    """The sites whose statistics lie far from the others': by site the class where it is worst, and in words how.

    A site's mean of a class is far where |m_k - r| is more than FAR times what is usual: the median of these distances,
    or, as a mean of few samples strays more, the median of sqrt(N_k) |m_k - r| over sqrt(N_k). Its covariance is where
    the root of tr(Sigma_k) N_k / (N_k - 1) is more than FAR times the median. Classes of fewer than LEAST holders say
    nothing.
    """
    worst: dict[int, tuple[float, int, str]] = {}
    for held in _by_class(parts):
        if len(held) < LEAST:
            continue
        counts = np.array([part.counts[row] for _, part, row in held], dtype=np.float64)
        means = np.stack([part.means[row] for _, part, row in held])
        away = np.linalg.norm(means - np.median(means, axis=0), axis=1)
        usual = np.maximum(np.median(away), np.median(np.sqrt(counts) * away) / np.sqrt(counts))
        several = counts > 1  # one sample has no spread
        spreads = np.sqrt([part.trace(row) for _, part, row in held] * counts / np.maximum(counts - 1, 1)) * several
        others = float(np.median(spreads[several])) if several.sum() >= LEAST else 0.0
        for (site, part, row), d, u, s in zip(held, away, usual, spreads, strict=True):
            far, wide = _times(d, u), _times(s, others) if others else 0.0
            words = f"spread is {wide:.3g} times the others'"
            if far >= wide:
                words = f"mean lies {far:.3g} times as far from the others' as is usual"
            if max(far, wide) > max(FAR, worst.get(site, (0.0,))[0]):
                worst[site] = (max(far, wide), int(part.classes[row]), words)
    return {site: (label, words) for site, (_, label, words) in sorted(worst.items())}


def _times(value: float, usual: float) -> float:
    """How many times the usual a value is; of two zeros 0."""
    return value / usual if usual > 0 else np.inf if value > 0 else 0.0


def _by_class(parts: Mapping[int, Kind]) -> Iterator[list[tuple[int, Kind, int]]]:
    """Of each class, in order, the sites that hold it: number, statistics, and the row of the class there."""
    for label in np.unique(np.concatenate([part.classes for part in parts.values()])):
        rows = [(site, part, part.row_of(int(label))) for site, part in sorted(parts.items())]
        yield [(site, part, row) for site, part, row in rows if row is not None]


def _median(held: Sequence[ClassStatistics]) -> tuple[ClassStatistics, np.ndarray]:
    """The median of sites' statistics of one class, and each site's distance from it."""
    gram = _inner_products(held)
    shares = combination(gram, capped(np.array([own.counts[0] for own in held], dtype=np.float64), 1.0))
    return merge(held, weights=shares.tolist()), distances(gram, shares)


def _mixture(own: ClassStatistics, clean: ClassStatistics, share: float) -> ClassStatistics:
    """``share`` of a site's statistics of a class and the rest of its median, with the site's own counts."""
    return replace(merge([own, clean], weights=[share, 1 - share]), counts=own.counts)


def _inner_products(held: Sequence[ClassStatistics]) -> np.ndarray:
    """<M_k, M_l>, float64 (n, n), of sites' statistics of one class; without p x p matrices where all are factors."""
    means = np.stack([own.means[0] for own in held])
    d = means - np.median(means, axis=0)
    scale = float(np.sqrt(np.median([own.trace(0) + gap @ gap for own, gap in zip(held, d, strict=True)]))) or 1.0
    d /= scale
    first = 1 + 2 * d @ d.T
    if all(own.ranks[0] != TRIANGLE for own in held):
        rows = [
            np.concatenate([own.factors.astype(np.float64) / scale, gap[None]])
            for own, gap in zip(held, d, strict=True)
        ]
        starts = np.cumsum([0, *(len(each) for each in rows[:-1])])
        stacked = np.concatenate(rows)
        squares = np.square(stacked @ stacked.T)
        return first + np.add.reduceat(np.add.reduceat(squares, starts, axis=0), starts, axis=1)
    dense = [own.covariance(0) / scale**2 + np.outer(gap, gap) for own, gap in zip(held, d, strict=True)]
    flat = np.stack([each.reshape(-1) for each in dense])
    return first + flat @ flat.T
