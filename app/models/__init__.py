"""The models, by the configuration's ``model.kind``."""

from typing import Any

from app.models.base import Model
from app.models.head import Head


def build(settings: Any, *, dimension: int, classes: int) -> Model:
    """A fresh model for inputs of ``dimension``; ``settings`` is the model group of the configuration."""
    return Head(dimension, classes, settings.hidden)
