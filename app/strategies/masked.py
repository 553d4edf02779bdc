"""Masked sums at the server: who takes part, and what their parts come to. Nothing is known of a single client's."""

import secrets
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from .. import messages
from ..common.errors import FedgeoError
from ..geometry.class_statistics import ClassStatistics
from ..geometry.class_sums import from_sums, sums_length
from ..masking.fixed_point import FixedPoint
from ..masking.pairwise import Occasion, masked_length, open_sum
from ..masking.roster import Roster
from ..messages import STATISTIC_BITS, WEIGHT_BITS
from ..models.base import Weights
from .handshake import Handshake
from .requests import named


class MaskedSums:
    """Of one process that serves a run. run: the id that its sites know, '' in simulation. names: the sites'.

    classes: those of which statistics are summed. Raises FedgeoError where a client told no key, or there are too few.
    """

    def __init__(self, hello: Handshake, run: str, names: Mapping[int, str], classes: Sequence[int]) -> None:
        keys = {client: hello.keys[client] for client in hello.clients if client in hello.keys}
        if lacking := [client for client in hello.clients if client not in keys]:
            raise FedgeoError(
                f"privacy.masked: {named(lacking[0], names)} has told no public key, so its code is another"
            )
        self.run = run  # sites keep the parts of different runs apart
        self.classes = len(hello.classes)
        self.dimension = int(hello.facts.get("dimension", 0))
        sites = {client: names.get(client, "") for client in keys}
        self.roster = Roster(secrets.token_hex(8), sites, keys, tuple(classes))
        self.occasion("", 0)  # a roster that hides nothing is refused here

    def occasion(self, phase: str, number: int) -> Occasion:
        return Occasion(self.run, phase, number, self.roster.attempt, self.roster.keys)

    def write(self, config: ConfigRecord) -> None:
        """Tell the clients the roster."""
        messages.write_roster(config, self.roster)

    def open(self, replies: Sequence[Message], phase: str, number: int, length: int, bits: int) -> np.ndarray:
        """float64 (length,): the sum of all clients' numbers."""
        parts = {reply.metadata.src_node_id: messages.read_masked(reply.content) for reply in replies}
        total = open_sum(parts, length, self.occasion(phase, number))
        return FixedPoint(bits, len(parts)).decode(total)

    def statistics(self, replies: Sequence[Message], what: str) -> ClassStatistics:
        """The class statistics of all clients together. what: as ``messages.statistics_content`` was given it."""
        by_class = what == "augmentation"
        length = sums_length(self.classes, self.dimension, by_class)
        phase = messages.phase(messages.STATISTICS, what)
        total = self.open(replies, phase, 0, length, STATISTIC_BITS)
        return from_sums(total, self.classes, self.dimension, by_class)

    def mean(self, replies: Sequence[Message], number: int, sent: ArrayRecord) -> tuple[Weights, float, float]:
        """(the clients' mean weights, their mean training loss, their examples in all) of round ``number``.

        sent: the weights that they have trained from, whose names, shapes and types are those of the mean.
        """
        like, _ = messages.split_weights(sent)
        length = 2 + sum(value.numel() for value in like.values())
        total = self.open(replies, messages.phase(messages.TRAIN), number, length, WEIGHT_BITS)
        examples, loss = total[:2]
        if not examples > 0:
            raise FedgeoError(f"round {number}: the clients' masked examples sum to {examples:g}")
        values = np.split(total[2:] / examples, np.cumsum([value.numel() for value in like.values()])[:-1])
        mean = {
            name: torch.from_numpy(value).reshape(tensor.shape).to(tensor.dtype)
            for (name, tensor), value in zip(like.items(), values, strict=True)
        }
        return mean, float(loss / examples), float(examples)


def part_length(asked: Message, classes: int, dimension: int, weights: int) -> int:
    """How many words a client answers. classes, dimension: of the embeddings. weights: how many the model has."""
    if asked.metadata.message_type == messages.TRAIN:
        return masked_length(2 + weights)
    by_class = messages.read_statistics(asked.content) == "augmentation"
    return masked_length(sums_length(classes, dimension, by_class))
