"""How good a model is on what a client holds out: counts and summed losses, by domain."""

from collections.abc import Mapping

import numpy as np

from ..config.privacy import RESEARCH, scoring_step
from ..config.schema import Privacy
from ..data.federated_dataset import FederatedDataset, Samples
from ..models.base import Model
from ..training.evaluation import evaluate, sample_losses
from ..training.plain import predict
from .told_scores import told_confusion, told_loss

PARTS = ("val", "test")
Counted = dict[str, dict[int, tuple[np.ndarray, float]]]


def held_out(dataset: FederatedDataset, client: int, shares: bool) -> dict[str, Samples]:
    """The 'val' and 'test' samples that the client scores: its own, or those held out for all clients together.

    Where the server holds some of them, and there is one model that is shared, it scores them itself.
    """
    asked: tuple[str, ...] = PARTS
    if shares and len(dataset.central) == 1:
        asked = tuple(part for part in PARTS if part not in dataset.central)
    return {part: dataset.held_out(part, None if part in dataset.central else client) for part in asked}


def count(model: Model, held: Mapping[str, Samples], dataset: FederatedDataset, privacy: Privacy = RESEARCH) -> Counted:
    """Of each part, by the number of the domain: confusion int64 (C, C) and the summed loss, as ``privacy`` bids.

    A domain is a subject where samples are EEG trials. dataset: names the domains and the classes.
    """
    counted: Counted = {part: {} for part in held}
    for part, own in held.items():
        for domain in np.unique(own.domain):
            rows = own.domain == domain
            outputs = predict(model, own.x[rows])
            scores = evaluate(outputs, own.y[rows], own.domain[rows], dataset.domains, dataset.classes)
            loss = scores.loss * scores.samples
            if scoring_step(privacy) > 1:
                loss = told_loss(sample_losses(outputs, own.y[rows]), len(dataset.classes), privacy)
            counted[part][int(domain)] = (told_confusion(scores.confusion, privacy), loss)
    return counted
