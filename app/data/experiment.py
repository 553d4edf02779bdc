"""What a configuration comes to: its model."""

from ..algorithms.base import Algorithm
from ..config.schema import Config
from ..models.base import Model
from ..models.registry import build
from ..one_shot.fitted import Fitted
from .federated_dataset import FederatedDataset


def build_model(config: Config, algorithm: Algorithm, dataset: FederatedDataset) -> Model:
    """A fresh model: the method's own where it brings one, else of the configured kind."""
    if isinstance(algorithm, Fitted):
        return algorithm.model(dataset.inputs["channels"], len(dataset.classes))
    return build(config.model, dataset.inputs, len(dataset.classes), stiefel=algorithm.keeps_manifold)
