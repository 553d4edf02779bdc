"""A source of EEG by the configuration's ``data.kind``: the name of a file here, or 'module:Class'."""

from ....common.settings import make
from ....common.targets import load_class, load_named
from ....config.schema import EegData
from .base import EegSource


def load(data: EegData) -> EegSource:
    """The source that the configuration names, with its own settings. Raises FedgeoError that names the key."""
    return make(find(data.kind), "data", data.settings)


def find(kind: str) -> type[EegSource]:
    """The class of ``kind``. Raises FedgeoError for a kind that there is not, and for a class that is no EegSource."""
    if ":" in kind:
        return load_class(kind, EegSource, "data.kind")
    return load_named(__package__, kind, EegSource, "data.kind")
