"""What a client sends where sums are masked: its class statistics, and its update of a round."""

import numpy as np
from flwr.app import RecordDict

from .. import messages
from ..masking.roster import Roster
from ..models.base import Weights
from .masks import check_asked
from .node import Node


def asked(content: RecordDict, node: Node) -> Roster | None:
    """Who takes part in the masked sum that a message asks for; None where sums are not masked. Raises as it says."""
    roster = messages.read_roster(content)
    check_asked(roster, node.config.privacy.masked)
    return roster


def statistics(node: Node, client: int, roster: Roster, what: str) -> np.ndarray:
    """uint64 (n,): the client's part of the sum of all clients' class statistics. what: which, as it was asked."""
    phase = messages.phase(messages.STATISTICS, what)
    sums = node.class_sums(client, what, roster)
    return node.masks.masked(client, roster, phase, 0, sums, messages.STATISTIC_BITS)


def update(
    node: Node, client: int, roster: Roster, number: int, examples: float, weights: Weights, loss: float
) -> np.ndarray:
    """uint64 (2 + d,): the client's part of the sums of n, n times its training loss, and n times its d weights.

    examples: n, what the client weighs. weights: those that it sends.
    """
    values = [value.detach().double().reshape(-1).numpy() for value in weights.values()]
    sums = examples * np.concatenate([[1.0, loss], *values])
    return node.masks.masked(client, roster, messages.phase(messages.TRAIN), number, sums, messages.WEIGHT_BITS)
