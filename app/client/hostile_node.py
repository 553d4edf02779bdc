"""A simulated node some of whose clients are hostile: they do as ``attack`` says, the others as ever."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..attacks import registry
from ..attacks.base import Attack
from ..common.seeds import HOSTILE
from ..config.privacy import rounded_counts
from ..config.schema import Config
from ..data.federated_dataset import DatasetWrapper, FederatedDataset, Samples
from ..geometry.class_statistics import ClassStatistics
from ..models.base import Weights
from .local_training import Call, Participation
from .node import Node


class HostileNode(Node):
    """What its hostile clients tell of counts is the same in all messages, as the server would refuse it otherwise."""

    def __init__(self, config: Config, whole_dataset: FederatedDataset, clients: list[int], state: Path) -> None:
        attack = registry.load(config)
        assert attack is not None
        self.attack, self.hostile = attack, registry.hostile(config, len(whole_dataset))
        super().__init__(config, Mislabelled(whole_dataset, attack, frozenset(self.hostile)), clients, state)
        self._learned: tuple[int, dict[int, Weights]] = (0, {})  # of a round, what all hostile clients have learned

    def counts(self, client: int) -> np.ndarray:
        return super().counts(client) * (self.attack.claimed if client in self.hostile else 1)

    def statistics(self, client: int, what: str = "augmentation") -> dict[str, np.ndarray]:
        arrays = super().statistics(client, what)
        if client not in self.hostile or "counts" not in arrays:
            return arrays
        told = rounded_counts(self.counts(client), self.config.privacy)[arrays["classes"]]
        if "ranks" not in arrays:  # of another kind: nothing but the counts can be false
            return arrays | {"counts": told}
        sent = self.attack.statistics(ClassStatistics.from_arrays(arrays)).to_arrays(self.config.augmentation.precision)
        return sent | {"counts": told}

    def describe(self, client: int, digest: str) -> tuple[dict[str, float | int], dict[str, list[int]]]:
        figures, counts = super().describe(client, digest)
        total = (np.array(counts["total"]) + self._claimed(client)).tolist()
        return figures, counts | {"total": total}

    def examples(self, client: int, digest: str) -> float:
        found = super().examples(client, digest)
        return found if self.config.federation.weights == "equal" else found + float(self._claimed(client).sum())

    def _claimed(self, client: int) -> np.ndarray:
        """int64 (C,): the samples of each class that a client says it has beyond those that it has."""
        privacy = self.config.privacy
        return rounded_counts(self.counts(client), privacy) - rounded_counts(super().counts(client), privacy)

    def sent(self, client: int, call: Call, weights: Weights) -> Weights:
        if client not in self.hostile or self.attack.changes != "weights":
            return weights
        learned: Mapping[int, Weights] = {client: weights}
        if self.attack.together:
            learned = self._of_all(call)
        rng = np.random.default_rng([self.config.seed, HOSTILE, client, call.number])
        return self.attack.weights(call.weights, learned, client, rng)

    def _of_all(self, call: Call) -> dict[int, Weights]:
        """What all hostile clients learn in this round, wherever they are hosted and whether they take part."""
        if self._learned[0] != call.number:
            together = Participation(self, self.hostile, call)
            self._learned = call.number, {client: together.result(client).weights for client in self.hostile}
        return self._learned[1]


@dataclass(frozen=True, eq=False)
class Mislabelled(DatasetWrapper):
    """A data set in which hostile clients' training labels are what the attack calls them."""

    attack: Attack
    hostile: frozenset[int]
    _labelled: dict[int, Samples] = field(default_factory=dict)

    def train(self, client: int) -> Samples:
        if client not in self.hostile:
            return self.inner.train(client)
        if client not in self._labelled:
            own = self.inner.train(client)
            self._labelled[client] = Samples(own.x, self.attack.labels(own.y, len(self.classes)), own.domain)
        return self._labelled[client]
