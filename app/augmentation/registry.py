"""An augmentation by the configuration's ``augmentation.kind``: the name of a file here, or 'module:Class'."""

from ..common.settings import make
from ..common.targets import load_class, load_named
from ..config import schema
from .base import Augmentation


def load(chosen: schema.Augmentation) -> Augmentation:
    """The augmentation that the configuration describes.

    An arm of a comparison is given every arm's settings, so that of the keys that conf/augmentation/_base.yaml has for
    all, each class takes those that it has a field for. Any further key must be a field of it. Raises FedgeoError
    that names the key.
    """
    cls = find(chosen.kind)
    wanted = cls.__dataclass_fields__
    common = {name: getattr(chosen, name) for name in type(chosen).model_fields if name in wanted}
    return make(cls, "augmentation", common | chosen.settings)


def find(kind: str) -> type[Augmentation]:
    """The class of ``kind``: that of app/augmentation/<kind>.py, or the one that 'module:Class' names.

    Raises FedgeoError for a kind that there is not, and for a class that is no Augmentation.
    """
    if ":" in kind:
        return load_class(kind, Augmentation, "augmentation.kind")
    return load_named(__package__, kind, Augmentation, "augmentation.kind")
