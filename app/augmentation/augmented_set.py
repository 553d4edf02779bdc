"""A client's augmented set: its real embeddings and those drawn along the shapes (Algorithms 1 and 2)."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import torch

from ..common.errors import FedgeoError
from ..geometry.class_geometry import Geometry, Shape
from ..geometry.gaussians import Diagonal, Gaussians
from ..training.samples import taken
from .sources import Filling, Move, SampleSource, anchor_rows, sample_sources

BLOCK = 256  # samples drawn together; noise is a function of the block, so this is part of what a seed means
WINDOW = 64 * 2**20  # bytes of samples that are shuffled together


class AugmentedSet:
    """A client's samples, real and drawn, in blocks that are computed when they are asked for.

    x: float32 (n, p), array or tensor, used in place where it is float32 already. y: integers (n,) in
    [0, ``classes``). ``filling``: what is drawn, round the anchors of ``geometry`` and along its shapes; without
    either the real samples are all. ``own``: the owners whose prototypes are not foreign to this client, by default
    itself alone (give all clients of its domain where several share one). ``move``: into the other domains.

    The real samples come first, in their order; then, class after class, those of step 1; then those of step
    2 by class and owner; each in blocks of 256 and a rest. Anchors of a held class are its real samples, all
    used equally often but for a remainder that is spread. The noise of a block depends on (seed, client,
    class, source, block) alone and is always drawn and multiplied as 256 whole rows, so that the set is the
    same to the bit in whatever order, and however often, its blocks are read.

    counts: int64 (classes,), samples of each class in all. added: how many of them were drawn; perturbed: how many
    of those along a shape. unshaped: class -> drawn samples that are bare anchors, the geometry having no shape of
    the class although they should be perturbed. sizes: int64, the samples of each block.

    Raises FedgeoError, naming the client, for wrong shapes, values that are not finite, labels out of range.
    """

    def __init__(
        self,
        x: np.ndarray | torch.Tensor,
        y: np.ndarray | torch.Tensor,
        filling: Filling | None = None,
        geometry: Geometry | Gaussians | None = None,
        *,
        classes: int,
        seed: int,
        client: int,
        own: Collection[int] | None = None,
        move: Move | None = None,
    ) -> None:
        self._key = (seed, client)
        self._x, self._y = _checked(x, y, classes, seed, client)
        self._sources: list[SampleSource] = []
        if filling is not None and geometry is not None:
            self._scale = filling.scale
            _check_geometry(geometry, self._x.shape[1], classes, client)
            owners = {client} if own is None else set(own)
            self._sources = sample_sources(self._x, self._y, filling, geometry, owners, move)
        # a translated sample is as it should be without a shape too
        wants_shape = filling is not None and filling.shaped and move is None
        sizes = _split(len(self._x))
        self._firsts: list[int] = []  # the first block of each source
        self.counts = np.bincount(self._y, minlength=classes).astype(np.int64)
        self.unshaped: dict[int, int] = {}
        shaped = [False] * len(sizes)
        for source in self._sources:
            self._firsts.append(len(sizes))
            sizes += _split(source.total)
            self.counts[source.label] += source.total
            shaped += [source.shape is not None] * (len(sizes) - len(shaped))
            if source.shape is None and wants_shape:
                self.unshaped[source.label] = self.unshaped.get(source.label, 0) + source.total
        self.sizes = np.array(sizes, dtype=np.int64)
        self._length = int(self.sizes.sum())
        self.added = self._length - len(self._x)
        self._shaped = np.array(shaped, dtype=bool)
        self.perturbed = int(self.sizes[self._shaped].sum())
        self._energy = np.full(len(sizes), np.nan)  # sum of ||beta||^2 of each block, once it was drawn
        self._bases: dict[int, np.ndarray] = {}
        self._whole: tuple[torch.Tensor, torch.Tensor] | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def own(self) -> "AugmentedSet":
        """Itself: nothing is mixed into its samples (``MixedSet``)."""
        return self

    @property
    def dimension(self) -> int:
        """p, the dimension of the embeddings."""
        return self._x.shape[1]

    def block(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block ``index``: x float32 (sizes[index], p), y int64. Real samples are views: do not write."""
        rows = int(self.sizes[index])
        number = bisect_right(self._firsts, index) - 1
        if number < 0:
            real = slice(index * BLOCK, index * BLOCK + rows)
            return torch.from_numpy(self._x[real]), torch.from_numpy(self._y[real])
        x = np.empty((rows, self.dimension), dtype=np.float32)
        label = self._draw(index, self._sources[number], index - self._firsts[number], x)
        return torch.from_numpy(x), torch.full((rows,), label, dtype=torch.int64)

    def materialise(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole set in block order: x float32 (len, p), y int64 (len,). Kept until ``release``."""
        if not self._sources:  # nothing was drawn: the real samples, where they lie
            return torch.from_numpy(self._x), torch.from_numpy(self._y)
        if self._whole is None:
            self._whole = self._collect(range(len(self.sizes)))
        return self._whole

    def release(self) -> None:
        """Give up the kept samples and bases; they come back, the same, when they are next asked for."""
        self._whole = None
        self._bases.clear()  # of hundreds of clients they would outweigh the samples

    @property
    def nbytes(self) -> int:
        """Bytes of the whole set once it is materialised."""
        return len(self) * (4 * self.dimension + 8)

    def in_order(self, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One unshuffled pass, in batches of at most ``batch_size``."""
        for index in range(len(self.sizes)):
            x, y = self.block(index)
            yield from zip(x.split(batch_size), y.split(batch_size), strict=True)

    def batches(
        self, batch_size: int, generator: torch.Generator, window: int = WINDOW
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One epoch: every sample once, in shuffled batches of ``batch_size``, the last one smaller.

        A set of at most ``window`` bytes is kept and shuffled uniformly as a whole. A larger one is read in
        windows of whole blocks in random order, each shuffled within; beside the real samples one window, one
        block and one batch are held.
        """
        return taken(self.picks(batch_size, generator, window), batch_size)

    def picks(
        self, batch_size: int, generator: torch.Generator, window: int = WINDOW
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The same epoch without copies: (x, y, rows), whose batches are x and y at ``batch_size`` rows each."""
        if batch_size < 1:
            raise FedgeoError(f"the batch size must be at least 1, not {batch_size}")
        if self.nbytes > window:
            return _picks(self._windows(generator, window), batch_size, generator)
        x, y = self.materialise()
        return iter([(x, y, torch.randperm(len(y), generator=generator))] if len(y) else [])

    def measure(self) -> None:
        """Draw every perturbed block that was not drawn yet, so that ``perturbation_rms`` covers them all."""
        for index in np.flatnonzero(self._shaped & np.isnan(self._energy)):
            self.block(int(index))

    @property
    def perturbation_rms(self) -> float:
        """Root of the mean ||beta||^2 over the drawn samples with a shape, as really drawn; 0 without any."""
        if not self.perturbed:
            return 0.0
        self.measure()
        return float(np.sqrt(self._energy[self._shaped].sum() / self.perturbed))

    def _draw(self, index: int, source: SampleSource, place: int, x: np.ndarray) -> int:
        """Write the block's samples, anchors and perturbation, to x float32 (rows, p); returns their class."""
        if source.shape is None:
            x[:] = 0
        else:
            self._perturb(index, source, place, x)
        if source.anchors.dtype == np.float32:
            x += source.anchors
        else:
            x += self._x[anchor_rows(source, place * BLOCK, len(x))]
        if source.offset is not None:
            x += source.offset
        return source.label

    def _perturb(self, index: int, source: SampleSource, place: int, beta: np.ndarray) -> None:
        """Write beta of the block's samples to ``beta``, by one product of whole blocks."""
        assert source.shape is not None
        noise = np.random.default_rng([*self._key, source.label, source.number, place])
        eps = noise.standard_normal((BLOCK, source.shape.rank), dtype=np.float32)
        basis = self._basis(source.label, source.shape)
        if isinstance(source.shape, Diagonal):
            np.multiply(eps[: len(beta)], basis, out=beta)
        elif len(beta) == BLOCK:
            np.matmul(eps, basis, out=beta)
        else:
            beta[:] = (eps @ basis)[: len(beta)]
        if np.isnan(self._energy[index]):
            self._energy[index] = np.square(beta, dtype=np.float64).sum()

    def _basis(self, label: int, shape: Shape | Diagonal) -> np.ndarray:
        """s_m xi^m of a class, float32 (r, p); of a diagonal, s alone, (p,)."""
        if label not in self._bases:
            spread = _spread(shape, self._scale)
            scaled = spread if isinstance(shape, Diagonal) else spread[:, None] * shape.eigenvectors.T
            self._bases[label] = scaled.astype(np.float32)
        return self._bases[label]

    def _collect(self, blocks: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = list(blocks)
        total = int(self.sizes[blocks].sum())
        x, y = np.empty((total, self.dimension), dtype=np.float32), np.empty(total, dtype=np.int64)
        start = 0
        for index in blocks:
            rows = slice(start, start + int(self.sizes[index]))
            number = bisect_right(self._firsts, index) - 1
            if number < 0:
                real = slice(index * BLOCK, index * BLOCK + rows.stop - rows.start)
                x[rows], y[rows] = self._x[real], self._y[real]
            else:
                y[rows] = self._draw(index, self._sources[number], index - self._firsts[number], x[rows])
            start = rows.stop
        return torch.from_numpy(x), torch.from_numpy(y)

    def _windows(self, generator: torch.Generator, window: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        limit = window // (4 * self.dimension + 8)
        group: list[int] = []
        rows = 0
        for index in torch.randperm(len(self.sizes), generator=generator).tolist():
            if group and rows + self.sizes[index] > limit:
                yield self._collect(group)
                group, rows = [], 0
            group.append(index)
            rows += int(self.sizes[index])
        yield self._collect(group)


def _picks(
    windows: Iterable[tuple[torch.Tensor, torch.Tensor]], size: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Shuffle each window into whole batches; what is short of one goes before the next window's."""
    rest: tuple[torch.Tensor, torch.Tensor] | None = None
    for x, y in windows:
        order = torch.randperm(len(y), generator=generator)
        if rest is not None:
            missing = size - len(rest[1])
            filled, order = order[:missing], order[missing:]
            rest = (torch.cat([rest[0], x[filled]]), torch.cat([rest[1], y[filled]]))
            if len(rest[1]) < size:
                continue
            yield *rest, torch.arange(size)
            rest = None
        whole = len(order) - len(order) % size
        if whole:
            yield x, y, order[:whole]
        if whole < len(order):
            rest = x[order[whole:]], y[order[whole:]]
        del x, y  # else this window would live on while the next one is drawn
    if rest is not None:
        yield *rest, torch.arange(len(rest[1]))


def _spread(shape: Shape | Diagonal, scale: str) -> np.ndarray:
    """s_m, float64 (r,)."""
    return np.sqrt(shape.eigenvalues) if scale == "sqrt" else shape.eigenvalues


def _split(total: int) -> list[int]:
    """Block sizes of ``total`` samples: whole blocks and a rest."""
    return [min(BLOCK, total - start) for start in range(0, total, BLOCK)]


def _checked(
    x: np.ndarray | torch.Tensor, y: np.ndarray | torch.Tensor, classes: int, seed: int, client: int
) -> tuple[np.ndarray, np.ndarray]:
    """x as float32 (n, p) and y as int64 (n,), in order and writeable (torch warns of views that are not)."""
    if seed < 0 or client < 0:
        raise FedgeoError(f"client {client}: the seed ({seed}) and the client's number must not be negative")
    samples, labels = np.asarray(x), np.asarray(y)
    if samples.ndim != 2 or samples.dtype.kind != "f":
        raise FedgeoError(f"client {client}: embeddings must be floats (n, p), not {samples.dtype} {samples.shape}")
    if labels.shape != samples.shape[:1] or labels.dtype.kind not in "iu":
        raise FedgeoError(
            f"client {client}: labels must be integers ({len(samples)},), not {labels.dtype} {labels.shape}"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        row = outside[0]
        raise FedgeoError(f"client {client}: row {row} has label {labels[row]}, but there are {classes} classes from 0")
    broken = np.flatnonzero(~np.isfinite(samples).all(axis=1))
    if len(broken):
        row = broken[0]
        raise FedgeoError(f"client {client}: the embedding in row {row} (class {labels[row]}) holds NaN or infinity")
    return np.require(samples, np.float32, ["C", "W"]), np.require(labels, np.int64, ["C", "W"])


def _check_geometry(geometry: Geometry | Gaussians, p: int, classes: int, client: int) -> None:
    if geometry.dimension != p:
        raise FedgeoError(f"client {client}: the geometry has dimension {geometry.dimension}, the embeddings {p}")
    largest = max(geometry.classes.max(initial=-1), geometry.prototype_classes.max(initial=-1))
    if largest >= classes:
        raise FedgeoError(
            f"client {client}: the geometry holds class {largest}, but there are {classes} classes from 0"
        )
