"""What a server sends to all clients before the rounds: checked, kept under its digest, and found again."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from ..augmentation.base import Augmentation, Receiver, Shared
from ..augmentation.filling import SERVER
from ..common.errors import FedgeoError, Missing
from ..common.files import private_folder, write_atomic
from ..common.received import only
from ..config.schema import Privacy
from ..data.federated_dataset import FederatedDataset
from ..geometry.class_statistics import field, refuse
from ..messages.records import array_digest


@dataclass(eq=False)
class GeometryStore:
    """Of one node with these ``clients``; ``folder`` is where it is kept for the next process."""

    privacy: Privacy
    augmentation: Augmentation
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
            private_folder(self.folder)
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
        dimension = self.dataset.inputs["dimension"]
        receiver = Receiver(len(self.dataset.classes), dimension, len(domains), self.privacy)
        shared = self.augmentation.read_shared(arrays, receiver)
        only(arrays, {*shared.to_arrays("float32"), "domains"}, SERVER, "array")
        return shared, domains

    def _path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise FedgeoError("a geometry's digest must be 64 hexadecimal digits")
        return self.folder / f"{digest}.safetensors"
