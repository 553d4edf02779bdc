"""What a configuration comes to: its model."""

from ..algorithms.base import Algorithm
from ..config.schema import Config
from ..models.base import Model
from ..models.registry import build
from ..one_shot.fitted import Fitted
from .federated_dataset import World


def build_model(config: Config, algorithm: Algorithm, world: World) -> Model:
    """A fresh model: the method's own where it brings one, else of the configured kind."""
    if isinstance(algorithm, Fitted):
        return algorithm.model(world.inputs["channels"], len(world.classes))
    return build(config.model, world.inputs, len(world.classes), stiefel=algorithm.keeps_manifold)
