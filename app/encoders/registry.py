"""The encoders by name: each is a file here with a function ``build``."""

import importlib
from typing import Any

from ..common.errors import FedgeoError
from .base import Encoder

NAMES = ("pixels", "open_clip", "timm", "efficientnet_lite0")


def build(name: str, *, device: str = "auto", precision: str = "auto", **settings: Any) -> Encoder:
    """The encoder called ``name``, one of NAMES, with its own settings.

    device: auto (cuda where there is one), cpu or cuda. precision: float32, bfloat16 or auto; auto takes bfloat16 on a
    CPU with instructions for it, where it is two to four times as fast, if it is as exact to the cosine on sample
    photographs; on a GPU, where decoding the images takes longer than encoding them, it takes float32.
    """
    if name not in NAMES:
        raise FedgeoError(f"unknown encoder {name!r}: choose among {list(NAMES)}")
    made: Encoder = importlib.import_module(f".{name}", __package__).build(
        device=device, precision=precision, **settings
    )
    return made
