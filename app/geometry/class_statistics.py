"""Class statistics: count, mean and covariance of each class, gathered at a site, merged exactly (Eq. 4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..common.errors import FedgeoError

TRIANGLE = -1  # the entry of ``ranks`` of a class whose covariance is held as a triangle


@dataclass(frozen=True, eq=False)
class ByClass:
    """A row a class, whatever else is known of each.

    classes: int64 (m,), ascending and unique. counts: int64 (m,). means: float64 (m, p).
    """

    classes: np.ndarray
    counts: np.ndarray
    means: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def dimension(self) -> int:
        """p, the dimension of the embeddings."""
        return self.means.shape[1]

    def row_of(self, label: int) -> int | None:
        """The row of class ``label``, or None where the class is absent."""
        row = int(np.searchsorted(self.classes, label))
        return row if row < len(self) and self.classes[row] == label else None

    def trace(self, row: int) -> float:
        """tr(Sigma) of a row."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ClassStatistics(ByClass):
    """What a client, or all of them together, know of each class: a row a class, covariances packed.

    classes: int64 (m,), ascending and unique. counts: int64 (m,), at least 1. means: float64 (m, p).
    ranks: int64 (m,), the number of factor rows of each class, or TRIANGLE.
    triangles: (t, p(p+1)/2), the upper triangles, row by row, of the classes whose rank is TRIANGLE.
    factors: (sum of the ranks, p), F of each other class, its covariance being F^T F.
    Triangles and factors are float64, or float32 where they came packed so. Rows of both lie in class order.

    The covariance has divisor n. A factor's rows are eigenvectors times root eigenvalues; it takes less room
    than a triangle where a class has fewer than p/2 samples, and unlike centred rows it is not the samples.
    """

    ranks: np.ndarray
    triangles: np.ndarray
    factors: np.ndarray

    def triangle(self, row: int) -> np.ndarray | None:
        """The packed upper triangle (p(p+1)/2,) of a row, a view; None where the row is held as a factor."""
        if self.ranks[row] != TRIANGLE:
            return None
        return self.triangles[np.count_nonzero(self.ranks[:row] == TRIANGLE)]

    def factor(self, row: int) -> np.ndarray | None:
        """F (rank, p) of a row, a view; None where the row is held as a triangle."""
        if self.ranks[row] == TRIANGLE:
            return None
        start = int(self.ranks[:row].clip(min=0).sum())
        return self.factors[start : start + int(self.ranks[row])]

    def covariance(self, row: int) -> np.ndarray:
        """The covariance of a row: float64 (p, p), exactly symmetric, divisor n."""
        factor = self.factor(row)
        if factor is not None:
            factor = factor.astype(np.float64, copy=False)
            return factor.T @ factor
        p = self.dimension
        dense = np.zeros((p, p))
        dense.reshape(-1)[_upper(p)] = self.triangle(row)
        diagonal = dense.diagonal().copy()
        dense += dense.T
        np.fill_diagonal(dense, diagonal)
        return dense

    def trace(self, row: int) -> float:
        factor, p = self.factor(row), self.dimension
        if factor is not None:
            return float(np.square(factor, dtype=np.float64).sum())
        triangle = self.triangle(row)
        assert triangle is not None
        diagonal = np.cumsum([0, *range(p, 1, -1)])  # where the triangle's rows begin
        return float(triangle[diagonal].sum(dtype=np.float64))

    def only(self, keep: np.ndarray) -> "ClassStatistics":
        """The rows where ``keep``, bool (m,), holds."""
        dense = self.ranks == TRIANGLE
        lengths = self.ranks.clip(min=0)
        return ClassStatistics(
            self.classes[keep],
            self.counts[keep],
            self.means[keep],
            self.ranks[keep],
            self.triangles[keep[dense]],
            self.factors[np.repeat(keep, lengths)],
        )

    def to_arrays(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """The fields by name, to be sent; rows of several clients may be joined along axis 0.

        dtype is that of triangles and factors. float32 halves them and is no longer exact: each entry is
        rounded to 6e-8 of itself, and small eigenvalues may turn slightly negative. Means stay float64.
        """
        packed = packed_dtype(dtype)
        return {
            "classes": self.classes,
            "counts": self.counts,
            "means": self.means,
            "ranks": self.ranks,
            "triangles": self.triangles.astype(packed, copy=False),
            "factors": self.factors.astype(packed, copy=False),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], origin: str = "class statistics") -> "ClassStatistics":
        """The statistics that ``to_arrays`` gave, checked for types, shapes, finite values and agreement.

        That the covariances are positive semidefinite is not checked. Raises FedgeoError, which begins with
        ``origin`` (who sent them), at the first fault.
        """
        classes = class_labels(arrays, "classes", origin)
        m = len(classes)
        counts = field(arrays, "counts", (m,), "integer", origin)
        means = field(arrays, "means", (m, None), "float", origin)
        p = means.shape[1]
        ranks = field(arrays, "ranks", (m,), "integer", origin)
        refuse(p < 1, origin, "means must have at least one column")
        refuse(bool((counts < 1).any()), origin, "counts must be at least 1")
        refuse(
            bool(((ranks < TRIANGLE) | (ranks > p)).any()),
            origin,
            f"ranks must lie between {TRIANGLE} and {p}",
        )
        held = int(np.count_nonzero(ranks == TRIANGLE))
        triangles = field(arrays, "triangles", (held, p * (p + 1) // 2), "float", origin)
        factors = field(arrays, "factors", (int(ranks.clip(min=0).sum()), p), "float", origin)
        return cls(classes, counts, means.astype(np.float64, copy=False), ranks, triangles, factors)


def gather(x: np.ndarray, y: np.ndarray, covariances: bool = True) -> ClassStatistics:
    """The statistics of a client's own embeddings (the paper's section 3.1): float64, centred, then squared.

    x: (n, p) of any real type. y: integer labels (n,). ``covariances=False``: counts and means alone, each
    covariance held as a factor of rank 0. Raises FedgeoError for wrong shapes or types, a label below 0, or a value
    that is not finite (row and class).
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or x.shape[1] < 1 or x.dtype.kind not in "fiu":
        raise FedgeoError(f"embeddings must be real numbers of shape (n, p), not {x.dtype} {x.shape}")
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise FedgeoError(f"labels must be integers of shape ({len(x)},), one an embedding, not {y.dtype} {y.shape}")
    if len(y) and y.min() < 0:
        raise FedgeoError(f"row {int(y.argmin())} has label {y.min()}: labels count from 0")
    broken = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(broken):
        first = broken[0]
        raise FedgeoError(f"the embedding in row {first} (class {y[first]}) holds NaN or infinity: embed it again")
    classes, counts = np.unique(y, return_counts=True)
    classes, counts = classes.astype(np.int64), counts.astype(np.int64)
    p = x.shape[1]
    packer = _Packer(p, small=(2 * counts < p) | (not covariances))
    means = np.empty((len(classes), p))
    for row, (label, count) in enumerate(zip(classes, counts, strict=True)):
        samples = x[y == label].astype(np.float64)
        means[row], centred = _centre(samples)
        if not covariances:
            packer.add_factor(np.empty((0, p)))
        elif packer.small[row]:
            packer.add_factor(centred / np.sqrt(count))
        else:
            packer.next_triangle()[:] = _pack(centred.T @ centred) / count
    return ClassStatistics(classes, counts, means, *packer.packed())


def cut(found: ClassStatistics, counts: np.ndarray) -> ClassStatistics:
    """``found`` as if of ``counts`` samples, int64 (m,), at most as many as they are of: ranks tell no more than that.

    Of each covariance the largest count - 1 eigenvalues are kept, by rows of zeros where it has fewer, and whether it
    goes as a factor or a triangle follows from the count. A covariance that no sample count bounds stays as it is.
    """
    p = found.dimension
    packer = _Packer(p, small=2 * counts < p)
    for row, count in enumerate(counts):
        rank = max(int(count) - 1, 0)
        factor = found.factor(row)
        if rank >= p and factor is None:
            packer.next_triangle()[:] = found.triangle(row)
            continue
        if factor is None:
            values, vectors = np.linalg.eigh(found.covariance(row))
            factor = np.sqrt(values[::-1].clip(min=0))[:, None] * vectors.T[::-1]
        rows = np.zeros((rank, p))
        rows[: len(factor[:rank])] = factor[:rank]
        if packer.small[row]:
            packer.keep_factor(rows)
        else:
            packer.next_triangle()[:] = _pack(rows.T @ rows)
    return ClassStatistics(found.classes, counts, found.means, *packer.packed())


def merge(
    parts: Iterable[ClassStatistics], between: bool = True, weights: Sequence[float] | None = None
) -> ClassStatistics:
    """The statistics of all parts together (Eq. 4), exact but for float64 rounding, a class at a time.

    Equal to the statistics of the pooled samples, whatever the grouping. Means are kept in float64, so the
    relative error of a covariance is about 1e-16 times the mean over the spread. Each class is summed in an
    order set by its counts and means, so the order of the parts changes no bit (unless two parts share count
    and mean of a class). A part that lacks a class counts nothing there. ``between=False`` leaves out the
    second sum of Eq. 4, the scatter of the clients' means: the mean covariance within clients remains. ``weights``:
    what each part counts in the place of its counts, not negative; the counts are summed all the same.

    Beside the parts and the result only one p x p matrix is held. Raises FedgeoError where there is no part
    or the dimensions differ.
    """
    parts = list(parts)
    if not parts:
        raise FedgeoError("there are no class statistics to merge: at least one client must send some")
    p = parts[0].dimension
    for number, part in enumerate(parts):
        if part.dimension != p:
            raise FedgeoError(
                f"statistics {number} are of dimension {part.dimension}, the first of {p}: use one encoder"
            )
    classes = np.unique(np.concatenate([part.classes for part in parts]))
    holders = [_holders(parts, int(label), weights) for label in classes]
    counts = np.array([sum(int(part.counts[row]) for part, row, _ in held) for held in holders], dtype=np.int64)
    factored = np.array([all(part.ranks[row] != TRIANGLE for part, row, _ in held) for held in holders], dtype=bool)
    packer = _Packer(p, small=factored & (2 * counts < p))
    means = np.empty((len(classes), p))
    for row, held in enumerate(holders):
        own = np.array([weight for *_, weight in held])
        shares = own / own.sum()
        means[row], deviations = _centre(np.stack([part.means[i] for part, i, _ in held]), shares)
        scatter = np.sqrt(shares)[:, None] * deviations if between else np.empty((0, p))
        if packer.small[row]:
            scaled = [np.sqrt(share) * _factor64(part, i) for share, (part, i, _) in zip(shares, held, strict=True)]
            packer.add_factor(np.concatenate([*scaled, scatter]))
        else:
            _sum_covariances(packer.next_triangle(), held, shares, scatter)
    return ClassStatistics(classes, counts, means, *packer.packed())


class _Packer:
    """Collects covariances in class order: triangles into one array made beforehand, factors into a list."""

    def __init__(self, p: int, small: np.ndarray) -> None:
        self.small = small
        self._triangles = np.zeros((int(np.count_nonzero(~small)), p * (p + 1) // 2))
        self._factors = [np.empty((0, p))]
        self._ranks: list[int] = []
        self._filled = 0

    def next_triangle(self) -> np.ndarray:
        self._ranks.append(TRIANGLE)
        self._filled += 1
        return self._triangles[self._filled - 1]

    def add_factor(self, rows: np.ndarray) -> None:
        """Eigenvectors times root eigenvalues of rows^T rows, directions without variance dropped."""
        _, singular, directions = np.linalg.svd(rows, full_matrices=False)
        floor = singular.max(initial=0.0) * max(rows.shape) * np.finfo(np.float64).eps
        rank = int(np.count_nonzero(singular > floor))
        self.keep_factor(singular[:rank, None] * directions[:rank])

    def keep_factor(self, rows: np.ndarray) -> None:
        """The rows of a factor, as they are."""
        self._ranks.append(len(rows))
        self._factors.append(rows)

    def packed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.array(self._ranks, dtype=np.int64), self._triangles, np.concatenate(self._factors)


def _centre(rows: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The (weighted) mean of rows and the rows less it, good also where the mean dwarfs the spread.

    The sum runs over differences to the first row, so that no digit is lost to a common offset, and the
    deviations are not taken from the rounded mean.
    """
    if weights is None:
        weights = np.full(len(rows), 1.0 / len(rows))
    deviations = rows - rows[0]
    shift = weights @ deviations
    return rows[0] + shift, deviations - shift


Held = tuple[ClassStatistics, int, float]  # a part that holds a class, its row there, and what it counts


def _holders(parts: list[ClassStatistics], label: int, weights: Sequence[float] | None) -> list[Held]:
    """The parts that hold a class, in an order that owes nothing to that of the parts."""
    held = [
        (part, row, float(part.counts[row] if weights is None else weights[number]))
        for number, part in enumerate(parts)
        if (row := part.row_of(label)) is not None
    ]
    return sorted(held, key=lambda entry: (int(entry[0].counts[entry[1]]), entry[0].means[entry[1]].tobytes()))


def _factor64(part: ClassStatistics, row: int) -> np.ndarray:
    factor = part.factor(row)
    assert factor is not None
    return factor.astype(np.float64, copy=False)


def _sum_covariances(out: np.ndarray, held: list[Held], weights: np.ndarray, scatter: np.ndarray) -> None:
    """Eq. 4 into ``out``, a triangle of zeros: weighted triangles and the Gram matrix of all other rows."""
    p = scatter.shape[1]
    rows, waiting = [scatter], len(scatter)
    for weight, (part, i, _) in zip(weights, held, strict=True):
        triangle = part.triangle(i)
        if triangle is not None:
            out += weight * triangle.astype(np.float64, copy=False)
            continue
        factor = np.sqrt(weight) * _factor64(part, i)
        rows.append(factor)
        waiting += len(factor)
        if waiting >= p:  # many clients' factors together would outgrow the one dense matrix
            stacked = np.concatenate(rows)
            out += _pack(stacked.T @ stacked)
            rows, waiting = [], 0
    if waiting:
        stacked = np.concatenate(rows)
        out += _pack(stacked.T @ stacked)


@lru_cache(maxsize=4)
def _upper(p: int) -> np.ndarray:
    """Where the upper triangle, row by row, lies in a flat (p, p) matrix."""
    return np.flatnonzero(np.triu(np.ones((p, p), dtype=bool)))


def _pack(dense: np.ndarray) -> np.ndarray:
    return dense.reshape(-1)[_upper(len(dense))]


# Checks of received arrays, which the geometry shares.


def refuse(fault: bool, origin: str, expected: str) -> None:
    """Raise FedgeoError, naming who sent the arrays and what was expected, if there is a fault."""
    if fault:
        raise FedgeoError(f"{origin}: {expected}")


def packed_dtype(name: str) -> np.dtype:
    """The type that floats are sent in, from its name; FedgeoError unless it is float64 or float32."""
    if name not in ("float64", "float32"):
        raise FedgeoError(f"arrays are sent as float64 or float32, not {name!r}")
    return np.dtype(name)


def field(
    arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int | None, ...], kind: str, origin: str
) -> np.ndarray:
    """The array ``name``, checked: FedgeoError that names it where it does not fit.

    shape: None stands for any length. kind: "integer" is int64, "float" finite float64 or float32.
    """
    if name not in arrays:
        raise FedgeoError(f"{origin}: the array {name!r} is missing")
    array = np.asarray(arrays[name])
    fits = array.ndim == len(shape) and all(n is None or n == have for n, have in zip(shape, array.shape, strict=True))
    wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    refuse(not fits, origin, f"{name} must have shape {wanted}, not {array.shape}")
    allowed = ("int64",) if kind == "integer" else ("float64", "float32")
    refuse(array.dtype.name not in allowed, origin, f"{name} must be {' or '.join(allowed)}, not {array.dtype}")
    if kind == "float":
        refuse(not np.isfinite(array).all(), origin, f"{name} holds NaN or infinity")
    return array


def class_labels(arrays: Mapping[str, np.ndarray], name: str, origin: str) -> np.ndarray:
    """The int64 labels ``name``, which must count from 0, ascend and be unique."""
    labels = field(arrays, name, (None,), "integer", origin)
    refuse(bool((labels < 0).any()), origin, f"{name} must count from 0")
    refuse(bool((np.diff(labels) <= 0).any()), origin, f"{name} must ascend, each class once")
    return labels
