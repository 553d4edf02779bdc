"""Geometric shapes: the principal directions of a class's covariance (Eq. 2), and their likeness (Eq. 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError
from .class_statistics import ByClass, ClassStatistics, class_labels, field, packed_dtype, refuse

# An eigenvalue below zero by less than this share of the largest is rounding (float32 packing included).
NEGATIVE = 1e-5
# A covariance whose halves differ by more than this share of its largest entry is not symmetric.
ASYMMETRY = 1e-8
ORTHONORMAL = {"float64": 1e-8, "float32": 1e-4}


@dataclass(frozen=True, eq=False)
class Shape:
    """The geometric shape of a class.

    eigenvalues: float64 (r,), descending, not negative. eigenvectors: float64 (p, r), orthonormal columns.
    total_variance: the trace of the covariance before it was cut to rank r.
    """

    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    total_variance: float

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)


def shape(covariance: np.ndarray, explained: float = 0.95, max_rank: int | None = None) -> Shape:
    """The eigenvectors and eigenvalues of a covariance (Eq. 2), cut to the rank that explains enough of it.

    covariance: (p, p). The rank is the smallest whose eigenvalues sum to ``explained`` (0, 1] of the trace,
    and at most ``max_rank``; ``explained=1.0`` keeps every eigenvalue above rounding, a zero covariance none.
    Eigenvalues that rounding made negative count as zero. Each vector's largest entry is positive.
    Raises FedgeoError for a covariance that is not finite, not symmetric or not positive semidefinite.
    """
    _check_cut(explained, max_rank)
    covariance = np.asarray(covariance, dtype=np.float64)
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1] or not covariance.size:
        raise FedgeoError(f"a covariance must be square, not {covariance.shape}")
    if not np.isfinite(covariance).all():
        raise FedgeoError("the covariance holds NaN or infinity")
    scale = float(np.abs(covariance).max())
    gap = float(np.abs(covariance - covariance.T).max())
    if gap > ASYMMETRY * scale:
        raise FedgeoError(
            f"the covariance is not symmetric: its halves differ by {gap:.3g}, its entries reach {scale:.3g}"
        )
    ascending, vectors = np.linalg.eigh(covariance)
    if ascending[0] < -NEGATIVE * max(ascending[-1], 0.0):
        raise FedgeoError(
            f"the covariance is not positive semidefinite: its eigenvalues run from {ascending[0]:.3g} "
            f"to {ascending[-1]:.3g}"
        )
    return _cut(ascending[::-1].clip(min=0.0), vectors[:, ::-1], explained, max_rank)


def factor_shape(factor: np.ndarray, explained: float = 0.95, max_rank: int | None = None) -> Shape:
    """The shape of the covariance F^T F, as ``shape`` gives it, from F (r, p) and without a p x p matrix."""
    _check_cut(explained, max_rank)
    factor = np.asarray(factor, dtype=np.float64)
    if not np.isfinite(factor).all():
        raise FedgeoError("the factor holds NaN or infinity")
    _, singular, directions = np.linalg.svd(factor, full_matrices=False)
    return _cut(singular**2, directions.T, explained, max_rank)


def similarity_matrix(a: Sequence[Shape], b: Sequence[Shape], leading: int = 5) -> np.ndarray:
    """How alike every shape of ``a`` is to every one of ``b`` (Eq. 3, the paper's Figure 6): float64 (|a|, |b|).

    The sum over the leading eigenvectors of |<xi_a^m, xi_b^m>|, between 0 and ``leading``. Where a shape has fewer
    eigenvectors the sum has fewer terms, so that its bound is the lesser rank.
    """
    if leading < 1:
        raise FedgeoError(f"the number of leading eigenvectors must be at least 1, not {leading}")
    dimensions = {len(s.eigenvectors) for s in (*a, *b)}
    if len(dimensions) > 1:
        raise FedgeoError(f"shapes of different dimensions cannot be compared: {sorted(dimensions)}")
    p = max(dimensions, default=0)
    products = np.einsum("imp,jmp->ijm", _leading(a, leading, p), _leading(b, leading, p))
    return np.abs(products).sum(axis=2)


@dataclass(frozen=True, eq=False)
class Geometry(ByClass):
    """What the server sends: each class's merged mean and shape, and the prototypes of the single clients.

    classes: int64 (m,), ascending and unique. counts: int64 (m,). means: float64 (m, p). shapes: one a class.
    prototype_classes, prototype_clients: int64 (q,), the class and the owner of each row of
    prototype_means: float64 (q, p). q is 0 where no prototypes are shared (Algorithm 1).
    """

    shapes: tuple[Shape, ...]
    prototype_classes: np.ndarray
    prototype_clients: np.ndarray
    prototype_means: np.ndarray

    def to_arrays(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """The fields as flat arrays, to be sent: eigenvectors are rows (sum of the ranks, p), class by class.

        dtype is that of every float array; float32 is as exact as the float32 samples drawn from it.
        """
        sent = packed_dtype(dtype)
        vectors = [np.empty((0, self.dimension), sent), *(s.eigenvectors.T.astype(sent) for s in self.shapes)]
        values = [np.empty(0), *(s.eigenvalues for s in self.shapes)]
        return {
            "classes": self.classes,
            "counts": self.counts,
            "means": self.means.astype(sent),
            "ranks": np.array([s.rank for s in self.shapes], dtype=np.int64),
            "eigenvalues": np.concatenate(values).astype(sent),
            "eigenvectors": np.concatenate(vectors),
            "total_variance": np.array([s.total_variance for s in self.shapes], dtype=np.float64),
            "prototype_classes": self.prototype_classes,
            "prototype_clients": self.prototype_clients,
            "prototype_means": self.prototype_means.astype(sent),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], origin: str = "geometry") -> "Geometry":
        """The geometry that ``to_arrays`` gave, in float64; types, shapes, order, orthonormality are checked.

        Raises FedgeoError, which begins with ``origin``, at the first fault.
        """
        classes = class_labels(arrays, "classes", origin)
        m = len(classes)
        counts = field(arrays, "counts", (m,), "integer", origin)
        refuse(bool((counts < 1).any()), origin, "counts must be at least 1")
        means = field(arrays, "means", (m, None), "float", origin)
        p = means.shape[1]
        refuse(p < 1, origin, "means must have at least one column")
        ranks = field(arrays, "ranks", (m,), "integer", origin)
        refuse(bool(((ranks < 0) | (ranks > p)).any()), origin, f"ranks must lie between 0 and {p}")
        total = int(ranks.sum())
        values = field(arrays, "eigenvalues", (total,), "float", origin)
        vectors = field(arrays, "eigenvectors", (total, p), "float", origin)
        variances = field(arrays, "total_variance", (m,), "float", origin)
        tolerance = ORTHONORMAL[vectors.dtype.name]
        shapes = []
        ends = np.cumsum(ranks)
        for label, start, end, variance in zip(classes, ends - ranks, ends, variances, strict=True):
            lambdas, rows = values[start:end].astype(np.float64), vectors[start:end].astype(np.float64)
            ordered = not len(lambdas) or (lambdas[-1] >= 0 and bool((np.diff(lambdas) <= 0).all()))
            refuse(not ordered, origin, f"the eigenvalues of class {label} must descend and not be negative")
            refuse(
                lambdas.sum() > variance * (1 + tolerance),
                origin,
                f"the total variance of class {label} must be at least the sum of its eigenvalues",
            )
            off = float(np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0.0))
            refuse(
                off > tolerance,
                origin,
                f"the eigenvectors of class {label} are not orthonormal (off by {off:.2g})",
            )
            shapes.append(Shape(lambdas, rows.T, float(variance)))
        owned = field(arrays, "prototype_classes", (None,), "integer", origin)
        clients = field(arrays, "prototype_clients", owned.shape, "integer", origin)
        prototypes = field(arrays, "prototype_means", (len(owned), p), "float", origin)
        refuse(
            bool((owned < 0).any() or (clients < 0).any()),
            origin,
            "prototype classes and clients must count from 0",
        )
        pairs = set(zip(owned.tolist(), clients.tolist(), strict=True))
        refuse(len(pairs) != len(owned), origin, "a client must own at most one prototype of a class")
        return cls(
            classes,
            counts,
            means.astype(np.float64),
            tuple(shapes),
            owned,
            clients,
            prototypes.astype(np.float64),
        )


def geometry(
    stats: ClassStatistics,
    explained: float = 0.95,
    max_rank: int | None = None,
    prototypes: Mapping[int, ClassStatistics] | None = None,
    rank_share: float = 1.0,
) -> Geometry:
    """The geometry of merged statistics, with rank cut as ``shape`` cuts it.

    rank_share: the rank is at most this share of a class's samples, rounded down but at least 1.

    prototypes: the statistics of the single clients (or domains) by id, whose class means are sent along for
    Algorithm 2; they are ordered by class, then by id.
    """
    shapes = []
    for row, label in enumerate(stats.classes):
        factor = stats.factor(row)
        bound = max(1, int(rank_share * stats.counts[row]))
        most = bound if max_rank is None else min(bound, max_rank)
        try:
            if factor is not None:
                shapes.append(factor_shape(factor, explained, most))
            else:
                shapes.append(shape(stats.covariance(row), explained, most))
        except FedgeoError as error:
            raise FedgeoError(f"class {label}: {error}") from error
    owners = [
        (int(label), client, mean)
        for client, part in (prototypes or {}).items()
        for label, mean in zip(part.classes, part.means, strict=True)
    ]
    owners.sort(key=lambda entry: entry[:2])
    means = np.stack([mean for *_, mean in owners]) if owners else np.empty((0, stats.dimension))
    if means.shape[1] != stats.dimension:
        raise FedgeoError(f"prototypes have dimension {means.shape[1]}, the merged statistics {stats.dimension}")
    return Geometry(
        stats.classes,
        stats.counts,
        stats.means,
        tuple(shapes),
        np.array([label for label, *_ in owners], dtype=np.int64),
        np.array([client for _, client, _ in owners], dtype=np.int64),
        means,
    )


def _check_cut(explained: float, max_rank: int | None) -> None:
    if not 0 < explained <= 1:
        raise FedgeoError(f"explained must be above 0 and at most 1, not {explained}")
    if max_rank is not None and max_rank < 1:
        raise FedgeoError(f"max_rank must be at least 1, or none, not {max_rank}")


def _cut(values: np.ndarray, vectors: np.ndarray, explained: float, max_rank: int | None) -> Shape:
    """Keep the leading columns; values descend and are not negative."""
    total = float(values.sum())
    floor = values.max(initial=0.0) * max(vectors.shape) * np.finfo(np.float64).eps
    rank = int(np.count_nonzero(values > floor))
    if explained < 1 and rank:
        # The slack is for eigenvalues that reach the share exactly, but for the rounding of their sum.
        enough = np.cumsum(values[:rank]) >= explained * total * (1 - 1e-12)
        rank = min(rank, int(np.count_nonzero(~enough)) + 1)
    if max_rank is not None:
        rank = min(rank, max_rank)
    kept = vectors[:, :rank]
    largest = np.abs(kept).argmax(axis=0)
    signs = np.where(kept[largest, np.arange(rank)] < 0, -1.0, 1.0)
    return Shape(values[:rank].copy(), kept * signs, total)


def _leading(shapes: Sequence[Shape], leading: int, p: int) -> np.ndarray:
    """The leading eigenvectors as rows (number of shapes, leading, p), zero where a shape has fewer."""
    rows = np.zeros((len(shapes), leading, p))
    for i, each in enumerate(shapes):
        count = min(leading, each.rank)
        rows[i, :count] = each.eigenvectors[:, :count].T
    return rows
