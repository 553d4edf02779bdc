"""FedCLIP (Lu et al., 2023): FedAvg of a small attention adapter on CLIP's image embedding.

Client:  minimise the cross-entropy over the adapter alone; both towers of CLIP are frozen, and so is the classifier,
         which is the text tower's (see app/encoders/text_classifier.py).
Server:  w_{t+1} = sum_k (n_k / n) w_k of the adapters.

The adapter is in app/models/clip_adapter.py.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..models.base import Weights
from .base import Algorithm, Text


@dataclass(frozen=True)
class FedClip(Algorithm):
    """templates: as of zeroshot."""

    templates: list[str]

    needs_text: ClassVar[bool] = True
    for_model: ClassVar[str | None] = "clip_adapter"

    def initial(self, weights: Weights, text: Text) -> Weights:
        return weights | {"text": text(self.templates)}
