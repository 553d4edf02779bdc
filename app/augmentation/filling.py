"""Augmentations that fill every class up to a number of samples: what they have alike."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..common.errors import FedgeoError
from ..common.received import LARGEST, MOST
from ..config.privacy import check_prototypes, check_received
from ..config.schema import Positive, Privacy
from ..geometry.class_geometry import Geometry
from ..geometry.class_statistics import refuse
from ..geometry.gaussians import Gaussians
from .augmented_set import AugmentedSet
from .base import Augmentation, Receiver
from .sources import Filling, Move

SERVER = "the server"  # whom a client blames for what it cannot take
SENSIBLE = (0.01, 1.0)  # shares of the samples' norm; a perturbation below is none, one above drowns the samples


@dataclass(frozen=True)
class FillingAugmentation(Augmentation):
    """The settings of all of them.

    target: the total that every class is filled up to; a class that holds more stays whole. absent: a class that the
    client does not hold gets ``target`` samples round the merged mean (``global_mean``) or nothing (``skip``).
    step2: also draw ``per_prototype`` samples round each foreign class mean (Algorithm 2, step 2). precision: of the
    floats that clients send.
    """

    by_class: ClassVar[bool] = True

    target: Positive = 50
    absent: Literal["global_mean", "skip"] = "global_mean"
    step2: bool = False
    per_prototype: Positive = 500
    precision: Literal["float32", "float64"] = "float32"

    @property
    def filling(self) -> Filling:
        """What a client draws."""
        raise NotImplementedError

    def check(self, privacy: Privacy) -> None:
        check_prototypes(self.step2, privacy)

    def check_domains(self, domains: Collection[str | None]) -> None:
        """Step 2 needs foreign prototypes: refused where all clients hold the same domain."""
        if self.step2 and len(set(domains)) < 2 and None not in domains:
            raise FedgeoError(
                f"augmentation.step2=true: all clients hold one domain ({next(iter(domains), None)}), so that no "
                "prototype is foreign: set augmentation.step2=false, or give data with several domains"
            )

    def training_set(
        self,
        x: np.ndarray,
        y: np.ndarray,
        shared: Any,
        *,
        classes: int,
        seed: int,
        client: int,
        own: Collection[int] | None = None,
    ) -> AugmentedSet:
        if shared is None:
            raise FedgeoError(f"client {client}: augmentation.kind={self.name} needs the geometry of the classes")
        geometry, move = self.located(shared, client)
        return AugmentedSet(x, y, self.filling, geometry, classes=classes, seed=seed, client=client, own=own, move=move)

    def warning(self, shared: Any, perturbation_rms: float) -> str | None:
        """Whether ``scale=lambda``, whose perturbation is in the SQUARED unit of the embeddings, suits that unit."""
        filling = self.filling
        if not (filling.shaped and filling.scale == "lambda" and perturbation_rms):
            return None
        norm = norm_rms(shared)
        share = perturbation_rms / norm
        if SENSIBLE[0] <= share <= SENSIBLE[1]:
            return None
        much = "next to nothing is drawn" if share < SENSIBLE[0] else "the samples drown in it"
        return (
            f"augmentation.scale=lambda: drawn samples are perturbed by {perturbation_rms:.3g}, {100 * share:.3g} % of "
            f"the samples' norm {norm:.3g} (root mean squares), so that {much}: the eigenvalues depend on the unit of "
            "the embeddings; set augmentation.scale=sqrt, or another encoder.normalise"
        )

    def located(self, shared: Any, client: int) -> tuple[Geometry | Gaussians, Move | None]:
        """What is drawn from, and where the samples are moved to."""
        return shared, None


def norm_rms(shapes: Geometry) -> float:
    """Root of the mean squared norm of the samples that the shapes are of; of a class it is |mu|^2 + tr Sigma."""
    spreads = np.array([shape.total_variance for shape in shapes.shapes])
    squares = np.square(shapes.means.astype(np.float64)).sum(axis=1) + spreads
    return float(np.sqrt(np.average(squares, weights=shapes.counts)))


def check_fits(sent: Geometry | Gaussians, ranks: list[int], receiver: Receiver) -> None:
    """Refuse what is of other classes, clients or embeddings than the receiver's, or beyond its policy.

    ranks: of each class's shape, 0 where there is none. Raises FedgeoError.
    """
    labels = np.concatenate([sent.classes, sent.prototype_classes])
    refuse(bool((labels >= receiver.classes).any()), SERVER, f"classes must be among the {receiver.classes} there are")
    expected = f"embeddings must have dimension {receiver.dimension}, not {sent.dimension}"
    refuse(sent.dimension != receiver.dimension, SERVER, expected)
    strangers = bool((sent.prototype_clients >= receiver.clients).any())
    refuse(strangers, SERVER, "every prototype's owner must be among the clients")
    refuse(bool((sent.counts > MOST).any()), SERVER, f"counts must be at most {MOST}")
    values = [sent.means, sent.prototype_means, np.array([getattr(s, "total_variance", 0.0) for s in sent.shapes])]
    values += [shape.eigenvalues for shape in sent.shapes]
    large = any(float(np.abs(v).max(initial=0.0)) > LARGEST for v in values)
    refuse(large, SERVER, f"values must be below {LARGEST:g}")
    check_received(sent.counts, ranks, sent.prototype_means, receiver.privacy)
