"""Classes that are named in the configuration, 'module:Class', and by what name the package itself runs.

In conf/ and in all files that are written, our own modules are called ``app.``, whatever the package is called in the
process that reads them.
"""

import importlib
import importlib.util
import re
from typing import TypeVar

from .errors import FedgeoError

RUNNING = __name__.removesuffix(".common.targets")  # what the package is called in this process: app or fedgeo
WRITTEN = "app"
INSTALLED = "fedgeo"

Kind = TypeVar("Kind")


def written(target: str) -> str:
    """``target`` as files hold it: 'fedgeo.algorithms.moon:Moon' -> 'app.algorithms.moon:Moon', others as they are."""
    top, dot, rest = target.partition(".")
    return f"{WRITTEN}.{rest}" if dot and top in (INSTALLED, RUNNING) else target


def is_ours(target: str, *rooms: str) -> bool:
    """Whether ``target`` names a module of this package, and of one of these subpackages where some are given."""
    name = written(target)
    prefixes = tuple(f"{WRITTEN}.{room}." for room in rooms) or (f"{WRITTEN}.",)
    return name.startswith(prefixes)


def load_class(target: str, kind: type[Kind], key: str) -> type[Kind]:
    """The class that ``target`` names, which must be a subclass of ``kind``: ours, or one from outside.

    'app.<module>' always means this package, and never another package that is called so.
    key: the configuration's key that holds the target. Raises FedgeoError, which begins with ``key=target``.
    """
    module, _, name = written(target).partition(":")
    if is_ours(module):
        module = RUNNING + module.removeprefix(WRITTEN)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise FedgeoError(f"{key}={target}: must be 'module:Class' that can be imported ({error})") from None
    if not isinstance(found, type):
        raise FedgeoError(f"{key}={target}: must name a class")
    if not issubclass(found, kind):
        raise FedgeoError(f"{key}={target}: must be a subclass of {kind.__module__}.{kind.__name__}")
    return found


def load_named(package: str, name: str, kind: type[Kind], key: str) -> type[Kind]:
    """The subclass of ``kind`` that ``package.<name>`` defines, and that is called ``name`` itself.

    key: the configuration's key that holds the name, which is that of a file in its group of conf/. Raises FedgeoError
    where there is none.
    """
    where = f"{package}.{name}"
    if re.fullmatch(r"\w+", name) and importlib.util.find_spec(where) is not None:
        for found in vars(importlib.import_module(where)).values():
            if isinstance(found, type) and issubclass(found, kind) and getattr(found, "name", None) == name:
                return found
    group = key.partition(".")[0]
    raise FedgeoError(f"{key}={name}: must be one of those in conf/{group}")
