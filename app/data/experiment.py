"""What a configuration comes to, resolved once: its algorithm, its data set and its model."""

import functools
from dataclasses import dataclass

from ..algorithms.base import Algorithm
from ..algorithms.registry import local_algorithm
from ..common.seeds import INITIAL, generator
from ..config.schema import Config
from ..models import registry as models
from ..models.base import Model, Weights
from ..one_shot.fitted import Fitted
from .federated_dataset import FederatedDataset, federated_dataset


@dataclass(frozen=True, eq=False)
class Experiment:
    """algorithm: what clients run. dataset: a simulation's, a site's own, or what a server knows of remote sites."""

    config: Config
    algorithm: Algorithm
    dataset: FederatedDataset

    def model(self) -> Model:
        """A fresh model: the method's own where it brings one, else of the configured kind.

        Raises FedgeoError where it does not fit the data.
        """
        inputs, classes = self.dataset.inputs, len(self.dataset.classes)
        if isinstance(self.algorithm, Fitted):
            return self.algorithm.model(inputs["channels"], classes)
        return models.load(self.config.model).build(inputs, classes, stiefel=self.algorithm.keeps_manifold)

    def initial(self) -> Weights:
        """The weights of a fresh model, a function of ``config.seed`` alone: the same on every node."""
        model = self.model()
        model.reset(generator(self.config.seed, INITIAL))
        return model.export()


@functools.lru_cache(maxsize=4)
def experiment(config: Config) -> Experiment:
    """The experiment over the data set that ``config`` describes, the same object for the same configuration.

    Raises FedgeoError for data or a method that cannot be had.
    """
    return Experiment(config, local_algorithm(config), federated_dataset(config))
