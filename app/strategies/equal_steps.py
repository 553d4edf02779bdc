"""``steps=equal``: how many gradient steps a round every client takes, whatever it augments with."""

from ..algorithms.base import Algorithm
from ..augmentation.equal_steps import planned_counts, planned_steps
from ..augmentation.sources import Filling
from ..config.schema import Config
from .handshake import Handshake


def equal_steps(config: Config, method: Algorithm, hello: Handshake) -> dict[int, int]:
    """Client -> the steps that it would take a round if it were augmented as ``config.augmentation`` says."""
    chosen = config.augmentation
    filling = Filling(chosen.target, chosen.absent, step2=chosen.step2, per_prototype=chosen.per_prototype)
    planned = planned_counts(hello.counts, filling, hello.domains)
    epochs = 1 if method.centralised else config.training.epochs
    steps = planned_steps(planned, epochs, config.training.batch_size)
    return dict(zip(hello.clients, steps.tolist(), strict=True))
