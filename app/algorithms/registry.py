"""The base methods, and how one is found by its name: ``load("app.algorithms.fedprox:FedProx", mu=0.1)``."""

import functools
from typing import Any

from ..common.settings import make
from ..common.targets import load_class
from ..config.schema import Config
from .base import Algorithm
from .fedavg import FedAvg


def load(target: str, **params: Any) -> Algorithm:
    """The method of the class ``target``, 'module:Class', with the hyper-parameters ``params``.

    The class is a frozen dataclass derived from Algorithm, from here or from anywhere else that can be imported.
    Each value is checked against the type and range of its field, strictly: a text is no number.
    Raises FedgeoError naming the key ``method.<parameter>``, the value given and what is allowed.
    """
    return make(load_class(target, Algorithm, "method.target"), "method", params)


def resolve(target: str) -> type:
    """The class that 'module:Class' names, an Algorithm or a strategy of the server alone; else FedgeoError."""
    return load_class(target, object, "method.target")


@functools.lru_cache(maxsize=16)
def local_algorithm(config: Config) -> Algorithm:
    """What clients run: the method's own algorithm, or FedAvg's where the method is a server's strategy only."""
    if issubclass(resolve(config.method.target), Algorithm):
        return load(config.method.target, **config.method.settings)
    return FedAvg()
