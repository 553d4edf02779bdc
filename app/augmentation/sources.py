"""What is drawn for a client, and round which anchors: step 1 class by class, step 2 by class and owner."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..common.errors import FedgeoError
from ..geometry.class_geometry import Geometry, Shape
from ..geometry.domain_shift import Transfer
from ..geometry.gaussians import Diagonal, Gaussians

FILL = 0  # the source number of step 1; the prototype of client k is source k + 1


@dataclass(frozen=True)
class Filling:
    """How many samples are drawn, round what, and along what.

    target: the total that every class is filled up to; a class that holds more stays whole.
    absent: a class of the geometry that the client does not hold gets ``target`` samples round the merged mean
    (``global_mean``) or nothing (``skip``).
    scale: s_m in beta = sum_m eps_m s_m xi^m: ``sqrt``, the root of the eigenvalue, or ``lambda``, the eigenvalue.
    step2: also draw ``per_prototype`` samples round each foreign prototype.
    shaped: whether samples are perturbed along their class's shape; else they are bare anchors.
    around: what a held class's samples are drawn round, its ``samples`` one by one or their ``mean``.

    Raises FedgeoError that names the key, for a word that is not offered or a number below 1.
    """

    target: int = 50
    absent: Literal["global_mean", "skip"] = "global_mean"
    scale: Literal["sqrt", "lambda"] = "sqrt"
    step2: bool = False
    per_prototype: int = 500
    shaped: bool = True
    around: Literal["samples", "mean"] = "samples"

    def __post_init__(self) -> None:
        for name, allowed in (("absent", ("global_mean", "skip")), ("scale", ("sqrt", "lambda"))):
            if getattr(self, name) not in allowed:
                raise FedgeoError(
                    f"augmentation.{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}"
                )
        for name in ("target", "per_prototype"):
            if getattr(self, name) < 1:
                raise FedgeoError(f"augmentation.{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Drawn samples of one class that share their anchors: rows of the real samples, or one mean.

    offset: float32 (p,), what every anchor is moved by; None for nothing.
    """

    label: int
    number: int
    total: int
    anchors: np.ndarray  # int64 (n,), rows of x; or float32 (p,), one mean
    shape: Shape | Diagonal | None
    offset: np.ndarray | None = None


class Move:
    """Where a client's samples go under ``shift``. FedgeoError where the transfer does not know its domain."""

    def __init__(self, transfer: Transfer, client: int) -> None:
        self.domains = transfer.domains
        if client >= len(self.domains) or self.domains[client] < 0:
            raise FedgeoError(f"client {client}: augmentation.kind=shift does not know its domain")
        self.deltas = transfer.deltas
        self.home = int(self.domains[client])
        self.first = len(self.domains) + 1  # of the sources' numbers: behind FILL and the prototypes'

    def spread(self, label: int, total: int, anchors: np.ndarray, shape: Shape | Diagonal | None) -> list[SampleSource]:
        """``total`` samples, evenly over the other domains; from a mean over all domains.

        anchors: int64 (n,), rows of x; or float32 (p,), one mean.
        """
        real = anchors.dtype != np.float32
        to = [d for d in range(len(self.deltas)) if not real or d != self.home]
        parts = zip(to, np.diff(np.arange(len(to) + 1) * total // len(to)).tolist(), strict=True)
        return [
            SampleSource(label, self.first + d, part, anchors, shape, self.offset(d, real)) for d, part in parts if part
        ]

    def offset(self, domain: int, real: bool) -> np.ndarray:
        """What takes a sample of the client, or else a class's centre, into ``domain``: float32 (p,)."""
        return (self.deltas[domain] - (self.deltas[self.home] if real else 0)).astype(np.float32)


def sample_sources(
    x: np.ndarray,
    y: np.ndarray,
    filling: Filling,
    geometry: Geometry | Gaussians,
    own: set[int],
    move: Move | None,
) -> list[SampleSource]:
    """What is drawn: step 1 class by class, then step 2 by class and owner.

    x: float32 (n, p), y: int64 (n,), the real samples. own: the owners whose prototypes are not foreign to the client.
    move: into the other domains; None: samples stay where their anchors are.
    """
    shapes: dict[int, Shape | Diagonal] = {}
    if filling.shaped:
        shapes.update(zip(geometry.classes.tolist(), geometry.shapes, strict=True))
    held, counts = np.unique(y, return_counts=True)
    have = dict(zip(held.tolist(), counts.tolist(), strict=True))
    sources = []
    for label in sorted({*have, *geometry.classes.tolist()}):
        missing = filling.target - have.get(label, 0)
        if label in have:
            anchors = np.flatnonzero(y == label)
            if filling.around == "mean":
                anchors = x[anchors].mean(axis=0, dtype=np.float64).astype(np.float32)
        elif filling.absent == "global_mean":
            anchors = geometry.means[geometry.row_of(label)].astype(np.float32)
        else:
            continue
        if missing > 0 and move is not None:
            sources += move.spread(label, missing, anchors, shapes.get(label))
        elif missing > 0:
            sources.append(SampleSource(label, FILL, missing, anchors, shapes.get(label)))
    if filling.step2:
        for row in np.lexsort((geometry.prototype_clients, geometry.prototype_classes)):
            label, owner = int(geometry.prototype_classes[row]), int(geometry.prototype_clients[row])
            if owner in own:
                continue
            anchors, offset = geometry.prototype_means[row].astype(np.float32), None
            if move is not None and label in have:
                anchors, offset = np.flatnonzero(y == label), move.offset(int(move.domains[owner]), real=True)
            sources.append(SampleSource(label, owner + 1, filling.per_prototype, anchors, shapes.get(label), offset))
    return sources


def anchor_rows(source: SampleSource, start: int, rows: int) -> np.ndarray:
    """The rows of the real samples that anchor a source's samples start .. start + rows, int64 (rows,)."""
    # Sample i of a takes anchor floor(i n / a): in order, each floor(a / n) or ceil(a / n) times.
    return source.anchors[np.arange(start, start + rows) * len(source.anchors) // source.total]
