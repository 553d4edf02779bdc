"""What a site has released, ever: of how many distinct training sets, and of each the very bytes of its statistics.

A set is known by the digest of its samples as they are trained on and scored, so that whatever a run may change of them
(encoder, band, channels, window, a class left out) makes another set, and so do new files. Statistics of a set are sent
again from here, the same bytes. Of sets that differ a little anything exact, a training step as well, gives what they
differ by: how many sets there may be is the policy's ``releases``, and one more is an administrator's act.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from ..common.files import exclusive, write_atomic
from ..config.node_config import Refusal
from ..data.federated_dataset import FederatedDataset

SET = "set.json"  # in the folder of each set that was released
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Releases:
    """Of one site. folder: in its state. most: how many sets there may be. site: its name, for refusals."""

    folder: Path
    most: int
    site: str

    def check(self, digest: str) -> None:
        """Raises Refusal where this set would be one too many."""
        if self._released(digest):
            return
        if (before := sum(1 for _ in self.folder.glob(f"*/{SET}"))) >= self.most:
            raise Refusal(
                f"site {self.site} has taken part with {before} training set{'s' if before > 1 else ''}, this run's "
                "is another one: data, split, encoder, preprocessing or classes differ. Its policy allows "
                f"privacy.releases={self.most} ever: run with the earlier settings, or ask its administrator, who may "
                f"raise releases in the policy file to {before + 1}"
            )

    def admit(self, digest: str, run: str) -> None:
        """Count this set before anything of it is sent. Raises Refusal as ``check`` does. run: which asked first."""
        if self._released(digest):
            return
        with exclusive(self.folder):
            self.check(digest)
            first = {"run": run, "time": datetime.now(UTC).isoformat(timespec="seconds")}
            write_atomic(self.folder / digest / SET, json.dumps(first).encode(), durable=True)

    def again(
        self, digest: str, kind: str, form: Mapping[str, Any], settings: Mapping[str, Any], make: Callable[[], Arrays]
    ) -> Arrays:
        """The statistics of a set that was admitted: those that were sent before, else what ``make`` gives.

        kind: which statistics. form: the settings of this kind that another release may not differ in, for it would
        tell more of single samples. settings: whatever else the numbers follow from. Raises Refusal for another form.
        """
        name = hashlib.sha256(json.dumps([kind, form, settings], sort_keys=True).encode()).hexdigest()[:32]
        path, said = self.folder / digest / f"{name}.safetensors", self.folder / digest / f"{kind}.json"
        with exclusive(self.folder):
            if said.exists() and (before := json.loads(said.read_text())) != form:
                told = ", ".join(f"{key}={value}" for key, value in before.items())
                raise Refusal(f"site {self.site} has released {kind} statistics of this set with {told}: set the same")
            if not path.exists():
                made = {key: np.ascontiguousarray(value) for key, value in make().items()}
                write_atomic(path, save(made), durable=True)
                write_atomic(said, json.dumps(dict(form)).encode(), durable=True)
            return load_file(path)

    def _released(self, digest: str) -> bool:
        return (self.folder / digest / SET).exists()


def set_digest(dataset: FederatedDataset, client: int) -> str:
    """The sha256 of the client's samples as they are used, part by part and class by class, with the classes' names."""
    digest = hashlib.sha256()
    for part in ("train", "val", "test"):
        samples = dataset.train(client) if part == "train" else dataset.held_out(part, client)
        for name, rows in _rows(dataset.classes, samples.y):
            x = np.ascontiguousarray(samples.x[rows])
            digest.update(json.dumps([part, name, x.shape, x.dtype.str]).encode())
            digest.update(x.data)
    return digest.hexdigest()


def _rows(classes: Sequence[str], y: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The rows of each class that there is, sorted by name: in which order a run has its classes is no matter."""
    found = [(classes[label], np.flatnonzero(y == label)) for label in np.unique(y)]
    return sorted(found, key=lambda entry: entry[0])
