"""A dishonest server over one site: any message, whatever a run would ask, to the real client code in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict

import client_app
from app import messages
from app.common.code import code_hash
from app.geometry.class_statistics import ClassStatistics
from app.grids.in_process import InProcessGrid
from app.models.base import Weights

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Server:
    """It runs ``words`` over the site of ``node_config``, as its client 0. run: 16 hexadecimal digits.

    classes: in the order of the labels, which it tells with every question but the first.
    """

    node_config: dict[str, str]
    words: tuple[str, ...]
    run: str = "0" * 16
    classes: Sequence[str] = tuple("0123456789")

    def ask(self, kind: str, content: RecordDict) -> RecordDict | str:
        """The site's answer, or the error in its place."""
        overrides = " ".join(f"'{word}'" for word in ("engine=deployment", *self.words))
        run_config = {"experiment": "quickstart", "overrides": overrides}
        grid = InProcessGrid(client_app.app, run_config, sites=[self.node_config])
        (node,) = grid.get_node_ids()
        agreed = messages.Agreed(self.run, code_hash(), None if kind == messages.HELLO else tuple(self.classes))
        (reply,) = grid.send_and_receive(
            [messages.cohort_message(Message(content, node, kind), node, [0], agreed=agreed)]
        )
        if reply.has_error():
            return reply.error.reason
        _, parts, errors = messages.split(reply.content)
        return parts[0] if parts else errors[0]

    def hello(self) -> dict[str, Any] | str:
        """What the site says of itself."""
        found = self.ask(messages.HELLO, RecordDict())
        return found if isinstance(found, str) else messages.read_text(found)

    def statistics(self, what: str = "augmentation") -> Arrays | str:
        """The arrays of its statistics."""
        return arrays(self.ask(messages.STATISTICS, messages.statistics_content(what)))

    def class_statistics(self, what: str = "augmentation") -> ClassStatistics:
        found = self.statistics(what)
        assert not isinstance(found, str), found
        return ClassStatistics.from_arrays(found)

    def weighed(self, kind: str, weights: Weights, number: int = 1, **config: Any) -> RecordDict | str:
        """The answer to a message with weights: training or evaluation of round ``number``."""
        told = ConfigRecord({"server-round": number, **config})
        return self.ask(kind, RecordDict({messages.ARRAYS: messages.weights_record(weights), messages.CONFIG: told}))


def arrays(found: RecordDict | str) -> Arrays | str:
    if isinstance(found, str):
        return found
    return {name: np.array(value) for name, value in messages.from_record(found.array_records[messages.ARRAYS]).items()}


def linear(weight: np.ndarray, bias: np.ndarray) -> Weights:
    """The weights of a linear head (C, p), (C,)."""
    return {
        "linear.weight": torch.from_numpy(np.asarray(weight, dtype=np.float32)),
        "linear.bias": torch.from_numpy(np.asarray(bias, dtype=np.float32)),
    }
