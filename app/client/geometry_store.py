"""What a server sends to all clients before the rounds: checked, kept under its digest, and found again."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from ..algorithms.signature import LARGEST
from ..augmentation.fedmix import SharedMeans
from ..common.errors import FedgeoError, Missing
from ..common.files import write_atomic
from ..config.privacy import check_received
from ..config.schema import Config
from ..data.federated_dataset import FederatedDataset
from ..geometry.class_geometry import Geometry
from ..geometry.class_statistics import field, refuse
from ..geometry.domain_shift import Transfer
from ..geometry.gaussians import Gaussians
from ..messages.records import array_digest
from ..messages.schema import MOST, bounded, only

SERVER = "the server"  # whom a node blames for what it cannot take

Shared = Geometry | Gaussians | SharedMeans | Transfer


@dataclass(eq=False)
class GeometryStore:
    """Of one node with these ``clients``; ``folder`` is where it is kept for the next process."""

    config: Config
    dataset: FederatedDataset
    clients: list[int]
    folder: Path
    _last: tuple[str, Shared, np.ndarray] | None = None

    def keep(self, digest: str, arrays: dict[str, np.ndarray]) -> None:
        """Check what all clients were sent, with the number of each client's domain, and keep it under its digest."""
        if self._last is not None and self._last[0] == digest:
            return
        if digest != array_digest(arrays):
            raise FedgeoError("the geometry does not have the digest it was announced with")
        self._last = (digest, *self._unpack(arrays))
        path = self._path(digest)
        if not path.exists():
            content = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
            write_atomic(path, content, durable=True)

    def load(self, digest: str) -> tuple[Shared, np.ndarray]:
        """What was kept under ``digest``, and each client's domain. Raises Missing where it is not here, or torn."""
        if self._last is None or self._last[0] != digest:
            path = self._path(digest)
            arrays = load_file(path) if path.is_file() else None
            if arrays is None or array_digest(arrays) != digest:
                path.unlink(missing_ok=True)
                raise Missing(f"the shapes {digest[:12]}")
            self._last = (digest, *self._unpack(arrays))
        return self._last[1:]

    def _unpack(self, arrays: dict[str, np.ndarray]) -> tuple[Shared, np.ndarray]:
        """What is augmented with, and int64 (clients,) the number of each client's domain, -1 where it is mixed."""
        domains = field(arrays, "domains", (None,), "integer", "geometry")
        refuse(bool((domains < -1).any()), SERVER, "domains must count from 0, or be -1")
        refuse(bool((domains >= len(domains)).any()), SERVER, "domains must be fewer than clients")
        refuse(max(self.clients) >= len(domains), SERVER, f"client {max(self.clients)} is not among its {len(domains)}")
        privacy = self.config.privacy
        if self.config.augmentation.kind == "fedmix":
            means = SharedMeans.from_arrays(arrays, len(self.dataset.classes), "shared means")
            only(arrays, {*means.to_arrays(), "domains"}, SERVER, "array")
            bounded(means.means, "means", SERVER)
            return means, domains
        if self.config.augmentation.kind == "fedfa":
            gaussians = Gaussians.from_arrays(arrays)
            only(arrays, {*gaussians.to_arrays(), "domains"}, SERVER, "array")
            self._fits(gaussians, domains)
            check_received(gaussians.counts, [0] * len(gaussians.counts), gaussians.prototype_means, privacy)
            return gaussians, domains
        whole = Transfer.from_arrays(arrays) if self.config.augmentation.kind == "shift" else None
        shapes = Geometry.from_arrays(arrays) if whole is None else whole.geometry
        only(arrays, {*(shapes if whole is None else whole).to_arrays(), "domains"}, SERVER, "array")
        self._fits(shapes, domains)
        if whole is not None:
            bounded(whole.deltas, "deltas", SERVER)
        check_received(shapes.counts, [shape.rank for shape in shapes.shapes], shapes.prototype_means, privacy)
        return shapes if whole is None else whole, domains

    def _fits(self, sent: Geometry | Gaussians, domains: np.ndarray) -> None:
        """Refuse what is of other classes, clients or embeddings than this node's."""
        classes, dimension = len(self.dataset.classes), self.dataset.inputs["dimension"]
        labels = np.concatenate([sent.classes, sent.prototype_classes])
        refuse(bool((labels >= classes).any()), SERVER, f"classes must be among the {classes} there are")
        refuse(sent.dimension != dimension, SERVER, f"embeddings must have dimension {dimension}, not {sent.dimension}")
        owners = sent.prototype_clients
        refuse(bool((owners >= len(domains)).any()), SERVER, "every prototype's owner must be among the clients")
        refuse(bool((sent.counts > MOST).any()), SERVER, f"counts must be at most {MOST}")
        values = [sent.means, sent.prototype_means, np.array([getattr(s, "total_variance", 0.0) for s in sent.shapes])]
        values += [shape.eigenvalues for shape in sent.shapes]
        large = any(float(np.abs(v).max(initial=0.0)) > LARGEST for v in values)
        refuse(large, SERVER, f"values must be below {LARGEST:g}")

    def _path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise FedgeoError("a geometry's digest must be 64 hexadecimal digits")
        return self.folder / f"{digest}.safetensors"
