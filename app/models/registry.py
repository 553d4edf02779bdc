"""The models, by the configuration's ``model.kind``."""

from collections.abc import Mapping
from typing import Any

from .base import Model
from .clip_adapter import Adapter
from .eegnet import EEGNet
from .linear import Head
from .spdnet import SPDNet


def build(settings: Any, inputs: Mapping[str, Any], classes: int, *, stiefel: bool = True) -> Model:
    """A fresh model. settings: the configuration's model group. inputs: what the data set says of its samples.

    stiefel: whether the federation keeps SPDnet's weights on the manifold; else they are free matrices.
    """
    if settings.kind == "spdnet":
        return SPDNet(
            inputs["channels"], settings.hidden, classes, settings.epsilon, settings.vectorise, stiefel=stiefel
        )
    if settings.kind == "eegnet":
        return EEGNet(inputs["channels"], inputs["samples"], classes, inputs["rate"], dropout=settings.dropout)
    if settings.kind == "clip_adapter":
        return Adapter(inputs["dimension"], classes)
    return Head(inputs["dimension"], classes, settings.hidden)
