"""A model by the configuration's ``model.kind``, the name of a file here, or by ``model.target``, 'module:Class'."""

from ..common.settings import make
from ..common.targets import load_class, load_named
from ..config import schema
from .base import Architecture


def load(chosen: schema.Model) -> Architecture:
    """The architecture that the configuration describes.

    Where ``model.target`` names a class, settings of ``model.kind`` that this class does not have are left out: they
    came with the kind's yaml. Raises FedgeoError that names the key.
    """
    cls = load_named(__package__, chosen.kind, Architecture, "model.kind")
    settings = chosen.settings
    if chosen.target is not None:
        of_kind = cls.__dataclass_fields__.keys()
        cls = load_class(chosen.target, Architecture, "model.target")
        left_out = of_kind - cls.__dataclass_fields__.keys()
        settings = {name: value for name, value in settings.items() if name not in left_out}
    return make(cls, "model", settings)
