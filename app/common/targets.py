"""A class that is named in the configuration, 'module:Class': ours, or one from outside the repository."""

import importlib
from typing import TypeVar

from .errors import FedgeoError

Kind = TypeVar("Kind")


def load_class(target: str, kind: type[Kind], key: str) -> type[Kind]:
    """The class that ``target`` names, which must be a subclass of ``kind``.

    key: the configuration's key that holds the target. Raises FedgeoError, which begins with ``key=target``.
    """
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedgeoError(f"{key}={target}: must be 'module:Class' that can be imported ({error})") from None
    if not isinstance(found, type):
        raise FedgeoError(f"{key}={target}: must name a class")
    if not issubclass(found, kind):
        raise FedgeoError(f"{key}={target}: must be a subclass of {kind.__module__}.{kind.__name__}")
    return found
