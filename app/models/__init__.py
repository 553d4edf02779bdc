"""The models, by the configuration's ``model.kind``."""

from collections.abc import Mapping
from typing import Any

from app.models.base import Model
from app.models.head import Head


def build(settings: Any, inputs: Mapping[str, Any], classes: int) -> Model:
    """A fresh model. settings: the configuration's model group. inputs: what the world says of its samples."""
    return Head(inputs["dimension"], classes, settings.hidden)
