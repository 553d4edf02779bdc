"""What each client of a node trains on: its samples as its augmentation has them, kept while there is room."""

from dataclasses import dataclass, field

import numpy as np

from ..augmentation.base import Augmentation, TrainingSet, domain_clients
from ..augmentation.set_cache import SET_CACHE
from ..common.errors import FedgeoError
from ..config.privacy import rounded, smallest_reported
from ..config.schema import Config
from ..data.federated_dataset import FederatedDataset, Samples
from ..training.samples import TensorSet
from .geometry_store import GeometryStore

ClientSet = TrainingSet | TensorSet


@dataclass(eq=False)
class TrainingSets:
    """The sets of one node's clients; ``store`` has what the server sent to all."""

    config: Config
    dataset: FederatedDataset
    augmentation: Augmentation
    store: GeometryStore
    _sets: dict[tuple[int, str], ClientSet] = field(default_factory=dict)

    def get(self, client: int, digest: str) -> ClientSet:
        """The client's training set. digest: of what the server sent to all, '' for nothing.

        Raises FedgeoError where the client has nothing to train on, Missing where what was sent is not here.
        """
        key = (client, digest)
        if key not in self._sets:
            self._sets[key] = self._made(client, digest)
        data = self._sets[key]
        if not isinstance(data, TensorSet):
            SET_CACHE.use(data.own)
        return data

    def describe(self, client: int, digest: str) -> tuple[dict[str, float | int], dict[str, list[int]]]:
        """How many samples were added, and the root of their mean squared perturbation; and the counts by class."""
        data = self.get(client, digest)
        assert not isinstance(data, TensorSet)
        drawn, privacy = data.own, self.config.privacy
        drawn.measure()
        figures = {
            "added": rounded(len(drawn) - len(self.dataset.train(client)), privacy),
            "perturbed": rounded(drawn.perturbed, privacy),
            "perturbation_rms": drawn.perturbation_rms,
        }
        unshaped = np.array([drawn.unshaped.get(label, 0) for label in range(len(self.dataset.classes))])
        total, bare = ([rounded(int(n), privacy) for n in row] for row in (drawn.counts, unshaped))
        return figures, {"total": total, "unshaped": bare}

    def _made(self, client: int, digest: str) -> ClientSet:
        own = self.dataset.train(client)
        if not len(own):
            bound = smallest_reported(self.config.privacy)
            found = f"of a class privacy.min_count={bound}" if bound > 1 else "any"
            raise FedgeoError(
                f"client {client} does not have {found} training samples: lower federation.clients or add data"
            )
        if self.config.data.family == "eeg":
            if digest:
                raise FedgeoError(f"client {client}: EEG trials are not augmented, but shapes {digest[:12]} are named")
            return TensorSet(own.x, own.y)
        return self._augmented(client, own, digest)

    def _augmented(self, client: int, own: Samples, digest: str) -> TrainingSet:
        """The client's samples with what its augmentation adds to them or mixes them with."""
        shared, domains = self.store.load(digest) if digest else (None, None)
        return self.augmentation.training_set(
            own.x,
            own.y,
            shared,
            classes=len(self.dataset.classes),
            seed=self.config.seed,
            client=client,
            own=None if domains is None else domain_clients(client, domains),
        )
