"""A frozen dataclass of settings, made from the values of a configuration: methods, augmentations and models."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from .errors import FedgeoError

Settings = TypeVar("Settings")


def make(cls: type[Settings], key: str, values: Mapping[str, Any]) -> Settings:
    """``cls(**values)``, each value checked strictly against the type and range of its field: a text is no number.

    cls: a dataclass. key: the group of the configuration that the values are from. Raises FedgeoError that names
    ``key.<field>``, the value given and what is allowed.
    """
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise FedgeoError(f"{key}.{name}: {cls.__name__} has no such parameter; it has {allowed}")
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise FedgeoError(f"{key}.{name}: {cls.__name__} needs a value for it")
    hints = get_type_hints(cls, include_extras=True)
    checked = {}
    for name, value in values.items():
        try:
            checked[name] = TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"].replace("Input should be ", "must be ")
            raise FedgeoError(f"{key}.{name}={value}: {message}") from None
    return cls(**checked)
