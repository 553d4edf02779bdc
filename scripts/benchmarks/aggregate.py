"""The server's step: the replies of many clients, taken apart and averaged, against Flower's own mean."""

import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from app import messages
from app.algorithms.base import average
from app.messages.flower_private import identify
from app.models.base import Weights
from scripts.benchmarks.pair import Pair

CLIENTS, CLASSES, DIMENSION = 500, 10, 512


def aggregate() -> list[Pair]:
    """FedAvg of linear heads. Ours come as one joined reply of a node, Flower's as one of each client."""
    identify()
    rng = np.random.default_rng(0)
    replies = {}
    for client in range(CLIENTS):
        weights = {
            "linear.weight": torch.from_numpy(rng.standard_normal((CLASSES, DIMENSION)).astype(np.float32)),
            "linear.bias": torch.from_numpy(rng.standard_normal(CLASSES).astype(np.float32)),
        }
        replies[client] = messages.train_reply(weights, {}, {"num-examples": float(client + 1), "train_loss": 1.0})
    joined = messages.join(replies)
    joined[messages.COHORT] = messages.cohort_record(list(replies), {})
    sent = [
        RecordDict(
            {
                messages.ARRAYS: messages.to_record(messages.from_record(reply.array_records[messages.ARRAYS])),
                messages.METRICS: reply.metric_records[messages.METRICS],
            }
        )
        for reply in replies.values()
    ]
    request = Message(RecordDict(), 1, messages.TRAIN)

    def ours() -> Weights:
        arrays = joined.array_records[messages.ARRAYS]
        fresh = RecordDict({**dict(joined.items()), messages.ARRAYS: ArrayRecord(dict(arrays.items()))})
        _, parts, _ = messages.split(fresh)  # it takes the arrays out of what it is given
        updates = [messages.read_update(Message(part, reply_to=request)) for part in parts.values()]
        return average((u.weights for u in updates), [u.examples for u in updates])

    def flower() -> ArrayRecord:
        return aggregate_arrayrecords(sent, "num-examples")

    def agree() -> None:
        mine, theirs = ours(), messages.from_record(flower())
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            np.testing.assert_allclose(value.numpy(), theirs[name], rtol=1e-4, atol=1e-5)

    return [
        Pair(
            f"{CLIENTS} replies of {CLASSES} x {DIMENSION} weights; against Flower's own mean; CPU seconds",
            lambda: ours,
            lambda: flower,
            agree,
            pairs=15,
            warm_up=2,
            clock=time.process_time,
        )
    ]
