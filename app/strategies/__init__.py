"""Which strategy a configuration asks for."""

import inspect

from flwr.serverapp.strategy import Strategy

from app import algorithms
from app.config import Config, Method
from app.errors import FedgeoError
from app.node import code_hash
from app.strategies.federated import Federated
from app.strategies.ggeur import GGEUR, NOTHING_DRAWN
from app.strategies.phased import Phased
from app.strategies.rate import Rate

__all__ = ["GGEUR", "NOTHING_DRAWN", "Phased", "build"]


def build(config: Config, clients: int, *, central: bool) -> Phased:
    """The base strategy of ``config.method`` in the wrapper that ``config.augmentation`` needs.

    clients: how many there are. central: whether the server evaluates.
    """
    rate = Rate(config.training)
    common = (build_base(config.method, clients), config.federation, rate, config.seed, code_hash())
    if config.augmentation.kind == "none":
        return Phased(*common, central=central)
    return GGEUR(*common, central=central, augmentation=config.augmentation)


def build_base(method: Method, clients: int) -> Strategy:
    """One of our algorithms, or a Flower strategy named by its class, unchanged."""
    found = algorithms.resolve(method.target)
    if not issubclass(found, Strategy):
        return Federated(algorithms.load(method.target, **method.settings), clients)
    allowed = inspect.signature(found).parameters
    unknown = sorted(set(method.settings) - set(allowed))
    if unknown:
        raise FedgeoError(f"method.{unknown[0]}: {method.name} has no such setting; it has {', '.join(allowed)}")
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_evaluate_nodes": 0, "min_available_nodes": 1}
    return found(**sampling, **method.settings)
