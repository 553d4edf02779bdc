"""What one client is asked, and what it answers: a writer and a reader for each kind of content."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from ..algorithms.base import Update
from ..common.errors import MISSING, FedgeoError
from ..models.base import Weights
from .records import (
    AGREED,
    ARRAYS,
    COHORT,
    CONFIG,
    METRICS,
    SERVER,
    from_record,
    named_arrays,
    request,
    split_weights,
    to_record,
    view_record,
    weights_record,
)
from .schema import real, whole, words

RATES = (1e-30, 1e39)  # a rate that is absurd is the user's; one that is none is refused


def metrics_record(values: Mapping[str, float | int]) -> MetricRecord:
    """Plain numbers only: Flower refuses numpy scalars, bool and None."""
    return MetricRecord({name: v if isinstance(v, int) else float(v) for name, v in values.items()})


def text_content(value: Any) -> RecordDict:
    """Any JSON value, for what is said in words (hello)."""
    return RecordDict({CONFIG: ConfigRecord({"json": json.dumps(value)})})


def read_text(content: RecordDict) -> Any:
    """The value that ``text_content`` was given."""
    return words(content.config_records[CONFIG]["json"], "a message")


def described_reply(figures: Mapping[str, float | int], counts: Mapping[str, Any]) -> RecordDict:
    """What a client says of its augmentation: figures, and ``counts`` by class, to be read with ``read_text``."""
    content = text_content(counts)
    content[METRICS] = metrics_record(figures)
    return content


def train_reply(weights: Weights, auxiliary: Weights, metrics: Mapping[str, float | int]) -> RecordDict:
    """A training reply as Flower's own strategies want it: one ArrayRecord, one MetricRecord."""
    return RecordDict({ARRAYS: view_record(named_arrays(weights, auxiliary)), METRICS: metrics_record(metrics)})


def read_update(reply: Message) -> Update:
    """One client's training reply, which ``CohortGrid.check`` has found to be one."""
    weights, auxiliary = split_weights(cast(ArrayRecord, reply.content[ARRAYS]))
    return Update(reply.metadata.src_node_id, weights, auxiliary, number(_metrics(reply.content), "num-examples"))


def statistics_content(what: str) -> RecordDict:
    """The question for class statistics: ``means``, ``covariances``, or what the ``augmentation`` needs."""
    return RecordDict({CONFIG: ConfigRecord({"what": what})})


def read_statistics(content: RecordDict) -> str:
    """What ``statistics_content`` was given."""
    what = request(content, (CONFIG,)).config.get("what")
    if what not in ("means", "covariances", "augmentation"):
        raise FedgeoError(f"{SERVER}: it asks for {str(what)[:40]!r}, which is no kind of statistics")
    return str(what)


def question_content(question: str, asked: Weights) -> RecordDict:
    """What a fitted method asks of a client: a word, and the tensors that belong to it."""
    return RecordDict({ARRAYS: weights_record(asked), CONFIG: ConfigRecord({"question": question})})


def read_question(content: RecordDict) -> tuple[str, Weights]:
    """The word and the tensors that ``question_content`` was given."""
    config = request(content, (ARRAYS, CONFIG)).config
    asked, auxiliary = split_weights(content.array_records[ARRAYS])
    if auxiliary or not isinstance(config.get("question"), str):
        raise FedgeoError(f"{SERVER}: its question must be a word and tensors")
    return str(config["question"]), asked


def read_answer(reply: Message) -> Weights:
    """One client's answer to a question, which ``CohortGrid.check`` has found to be one."""
    answer, _ = split_weights(reply.content.array_records[ARRAYS])
    return answer


Evaluation = dict[str, dict[int, tuple[np.ndarray, float]]]
"""'val' and 'test' -> the domain's index -> (confusion int64 (C, C), summed cross-entropy)."""


def evaluate_reply(evaluation: Evaluation, classes: int) -> RecordDict:
    """A client's evaluation, domain by domain; its weight is the number of its test samples."""
    arrays = {}
    for part, counted in evaluation.items():
        arrays[f"{part}.domain"] = np.array(list(counted), dtype=np.int64)
        confusions = [confusion for confusion, _ in counted.values()]
        arrays[f"{part}.confusion"] = np.array(confusions, dtype=np.int64).reshape(-1, classes, classes)
        arrays[f"{part}.loss"] = np.array([loss for _, loss in counted.values()], dtype=np.float64)
    samples = int(arrays["test.confusion"].sum())
    return RecordDict({ARRAYS: to_record(arrays), METRICS: metrics_record({"num-examples": samples})})


def read_evaluation(content: RecordDict) -> Evaluation:
    """The evaluation of one client."""
    arrays = from_record(content.array_records[ARRAYS])
    return {
        part: {
            int(domain): (confusion, float(loss))
            for domain, confusion, loss in zip(
                arrays[f"{part}.domain"], arrays[f"{part}.confusion"], arrays[f"{part}.loss"], strict=True
            )
        }
        for part in ("val", "test")
    }


def test_metrics(evaluations: Iterable[Evaluation]) -> MetricRecord | None:
    """num-examples, accuracy and loss (mean cross-entropy) over all test samples; None where there are none."""
    counted = [pair for evaluation in evaluations for pair in evaluation["test"].values()]
    samples = sum(int(confusion.sum()) for confusion, _ in counted)
    if not samples:
        return None
    right = sum(int(np.trace(confusion)) for confusion, _ in counted)
    loss = math.fsum(loss for _, loss in counted) / samples
    return metrics_record({"num-examples": samples, "accuracy": right / samples, "loss": loss})


def read_round(content: RecordDict) -> int:
    """The round a training message is for."""
    return whole(content.config_records[CONFIG].get("server-round"), SERVER, "server-round", 1)


def read_rate(content: RecordDict, own: float) -> float:
    """The learning rate of a training message, ``own`` where it has none."""
    return real(content.config_records[CONFIG].get("lr", own), SERVER, "lr", *RATES)


def write_steps(config: ConfigRecord, steps: Mapping[int, int]) -> None:
    """Say in ``config`` how many gradient steps each client takes in a round."""
    config["steps-of"], config["steps"] = list(steps), list(steps.values())


def read_steps(content: RecordDict, client: int) -> int | None:
    """The gradient steps of ``client`` in a round, None where its epochs say. FedgeoError where it was left out."""
    config = cast(ConfigRecord, content[CONFIG])
    if "steps" not in config:
        return None
    clients, counts = config.get("steps-of"), config["steps"]
    if not isinstance(clients, list) or not isinstance(counts, list) or len(clients) != len(counts):
        raise FedgeoError(f"{SERVER}: steps must be as many numbers as the clients that they are of")
    steps = {whole(k, SERVER, "steps-of"): whole(n, SERVER, "steps", 1) for k, n in zip(clients, counts, strict=True)}
    if client not in steps:
        raise FedgeoError(f"client {client} was not there when steps=equal was planned: start the run again with it")
    return steps[client]


def read_digest(content: RecordDict) -> str:
    """The digest of the geometry to train with, '' for none."""
    digest = content.config_records[CONFIG].get("geometry", "")
    if not isinstance(digest, str) or not re.fullmatch("([0-9a-f]{64})?", digest):
        raise FedgeoError(f"{SERVER}: a digest must be 64 hexadecimal digits")
    return digest


def read_weights(content: RecordDict, config: bool = True) -> tuple[Weights, Weights]:
    """(weights, what goes with them) of a message that holds nothing else but, where it has one, a ConfigRecord."""
    request(content, (ARRAYS, CONFIG) if config else (ARRAYS,))
    return split_weights(content.array_records[ARRAYS])


def read_loss(content: RecordDict) -> list[tuple[float, float]]:
    """[(examples, training loss)] of a training reply, [] of any other."""
    metrics = _metrics(content)
    if "train_loss" not in metrics:
        return []
    return [(number(metrics, "num-examples"), number(metrics, "train_loss"))]


def read_examples(reply: Message) -> float:
    """What a training reply weighs."""
    return number(_metrics(reply.content), "num-examples")


def write_examples(reply: Message, examples: float) -> None:
    """Let a training reply weigh ``examples``."""
    reply.content[METRICS] = MetricRecord({**_metrics(reply.content), "num-examples": examples})


def flat_arrays(reply: Message, like: ArrayRecord) -> np.ndarray:
    """The arrays of a training reply that ``like`` names, as one vector, float32."""
    own = cast(ArrayRecord, reply.content[ARRAYS])
    return np.concatenate([np.asarray(own[name].numpy(), dtype=np.float32).reshape(-1) for name in like])


def read_clamped(content: RecordDict) -> list[float]:
    """[SPDnet's clamped fraction] where a training reply tells it."""
    metrics = _metrics(content)
    return [number(metrics, "clamped_fraction")] if "clamped_fraction" in metrics else []


def _metrics(content: RecordDict) -> MetricRecord:
    """The metrics of a reply, empty where it has none. Flower's own views by type are copies."""
    found = content.get(METRICS)
    return found if isinstance(found, MetricRecord) else MetricRecord()


def number(metrics: MetricRecord, name: str) -> float:
    """A metric that is one number."""
    return float(cast(float, metrics[name]))


def is_stock(content: RecordDict) -> bool:
    """Whether a message comes from a strategy that knows nothing of fedgeo: its node answers as one client."""
    return COHORT not in content and AGREED not in content


def is_missing(reply: Message) -> bool:
    """Whether a client lacks what the message referred to: it is to be sent that, and asked again."""
    return reply.has_error() and (reply.error.reason or "").startswith(MISSING)
