"""The weights that the first round begins with."""

from collections.abc import Sequence

import torch

from ..common.errors import FedgeoError
from ..data.experiment import Experiment
from ..encoders.text_classifier import text_classifier
from ..models.base import Weights


def initial_weights(experiment: Experiment) -> Weights:
    """A fresh model's weights, or what the method makes of them: a zero-shot classifier of the classes' names.

    Raises FedgeoError where the text encoder does not go with the embeddings.
    """
    config, dataset = experiment.config, experiment.dataset

    def text(templates: Sequence[str]) -> torch.Tensor:
        encoder = config.encoder.settings
        rows = text_classifier(
            dataset.classes, templates, encoder["model"], encoder["pretrained"], encoder["checkpoint"]
        )
        dimension = dataset.inputs["dimension"]
        if rows.shape[1] != dimension:
            raise FedgeoError(
                f"encoder.model={encoder['model']}: its text embeddings have dimension {rows.shape[1]}, the "
                f"embeddings of data={config.data.name} have {dimension}: name the model they were made with"
            )
        return rows

    return experiment.algorithm.initial(experiment.initial(), text)
