"""What a model file says of itself, checked before any of it is used: the file may be anybody's.

It names no file of this machine that is opened, and no code but this package's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, ValidationError

from ..common.errors import FedgeoError
from ..config.schema import Covariances, OpenGroup, Pair, Positive, Rate


class _Described(pydantic.BaseModel):
    """Known keys have the right type; others are not looked at."""

    model_config = pydantic.ConfigDict(extra="ignore", strict=True)


class _Encoder(OpenGroup):
    name: str
    normalise: Literal["none", "l2"]
    batch_size: Positive = 64


class _Facts(_Described):
    dimension: Positive | None = None
    channels: list[str] | None = None
    samples: Positive | None = Field(None, alias="samples a trial")
    rate: Rate | None = Field(None, alias="sampling rate")
    average: bool | None = Field(None, alias="average reference")
    encoder: str | None = None
    bit_depth: Literal[8, 10, 12, 14, 16] | None = Field(None, alias="bit depth")


class _Data(_Described):
    events: dict[str, str | int] | None
    window: Pair
    windows: Pair | None
    band: Pair | None
    notch: Rate | None
    resample: Rate | None
    bad_channels: Literal["refuse", "drop", "interpolate"] = "refuse"
    reference: Literal["none", "average"] = "none"
    rename: dict[str, str] | None = None


class _Method(OpenGroup):
    name: str = ""
    target: str = ""


class _Description(_Described):
    classes: Annotated[list[str], Field(min_length=1)]
    model: dict[str, Any]
    facts: _Facts
    method: _Method = _Method()
    encoder: _Encoder | None = None
    data: _Data | None = None
    covariances: Covariances | None = None


def check(described: Any, path: Path) -> dict[str, Any]:
    """The description, found to be one. Raises FedgeoError, which names the file ``path`` and what is wrong there."""
    try:
        found = _Description.model_validate(described)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of it"
        raise FedgeoError(
            f"{path}: its metadata do not say what it is ({where}: {first['msg'].lower()}): give a model that a run of "
            "this version left"
        ) from None
    family = (found.facts.dimension, found.encoder) if found.facts.channels is None else (found.data, found.covariances)
    eeg = found.facts.channels is not None and None in (found.facts.samples, found.facts.rate, found.facts.average)
    if None in family or eeg or len(set(found.classes)) < len(found.classes):
        raise FedgeoError(
            f"{path}: its metadata do not say what it reads: give a model that a run of this version left"
        )
    return dict(described)


def encoder_settings(described: Mapping[str, Any], checkpoint: Path | None) -> dict[str, Any]:
    """The settings of the model's encoder, its weights being a file only where the user gives one, ``checkpoint``.

    What the model's file names instead is never opened. Raises FedgeoError where it names one and none is given.
    """
    settings = {key: value for key, value in described.items() if key not in ("name", "normalise", "batch_size")}
    named = [settings.pop("checkpoint", None)]
    if _is_file(settings.get("pretrained")):
        named.append(settings.pop("pretrained"))
        settings["pretrained"] = None
    if checkpoint is not None:
        return settings | {"checkpoint": checkpoint}
    if any(named):
        raise FedgeoError(
            f"encoder {described['name']}: its weights were a file of another machine, which is not looked for here: "
            "give yours with --checkpoint FILE"
        )
    return settings


def _is_file(value: Any) -> bool:
    """Whether an encoder might take this for the path of its weights, and not for the name of known ones."""
    return isinstance(value, str) and ("/" in value or "\\" in value or "." in value or os.path.exists(value))
