"""A trained model as a file, with all that is needed to use it on new samples."""

import json
from pathlib import Path
from typing import Any

from ..config.schema import Config
from ..data.federated_dataset import FederatedDataset
from ..models import registry as models
from ..models.base import Weights
from ..models.weights import save_weights

EEG_PROCESSING = {"events", "window", "windows", "band", "notch", "resample"}  # how a recording becomes trials

# the same where it is not as usual; a model of ordinary recordings is the file it always was
EEG_UNUSUAL = {"bad_channels": "refuse", "reference": "none", "rename": None}


def save_model(path: Path, config: Config, weights: Weights, dataset: FederatedDataset) -> None:
    """A model as safetensors, with all that is needed to use it on new samples: what it is, and what it reads.

    The metadata's one entry, ``fedgeo``, is JSON: classes, experiment, model, method; facts (what all clients had
    alike: dimension and encoder, or channels, sampling rate, unit and window); encoder for images, data and covariances
    for EEG, as configured.
    """
    described: dict[str, Any] = {
        "classes": list(dataset.classes),
        "experiment": config.experiment,
        "model": config.model.model_dump(exclude_none=True),
        "method": config.method.model_dump(),
        "facts": dataset.facts(0),
    }
    if config.data.family == "eeg":
        unusual = {key for key, usual in EEG_UNUSUAL.items() if getattr(config.data, key) != usual}
        described |= {
            "encoder": None,
            "data": config.data.model_dump(include=EEG_PROCESSING | unusual),
            "covariances": config.covariances.model_dump(),
        }
    elif config.data.name == "features":  # who made them is not known here
        described["encoder"] = {"name": "features", "normalise": config.encoder.normalise}
    else:  # the path of its weights is of this machine only
        described["encoder"] = config.encoder.model_dump(exclude={"checkpoint"})
    described |= models.load(config.model).notes
    # one entry, for safetensors writes several in no fixed order
    save_weights(path, weights, {"fedgeo": json.dumps(described)})
