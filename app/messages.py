"""The only file that knows Flower's records: what each message holds, and how clients share one.

A node hosts a cohort of clients. ``request`` builds what the server asks of all of them; ``answer`` runs a
handler once a client and joins the replies to one message; ``split`` takes that message apart again. Joined
arrays are concatenated along their first axis, so a reply is as large as its parts.
"""

import io
import json
import logging
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SType

from app.algorithms.base import Update
from app.errors import MISSING, FedgeoError, describe
from app.models.base import Weights
from app.seeds import one_thread
from app.validation import only, real, whole, words

log = logging.getLogger(__name__)

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # the keys that Flower's own strategies use
COHORT = "cohort"
TRAIN, EVALUATE = "train", "evaluate"
PLACE, HELLO, STATISTICS, GEOMETRY = "query.place", "query.hello", "query.stats", "train.geometry"
SUMS = "query.sums"
FINAL = "query.final"
AGREED = "agreed"  # what a deployment's messages say beside what they ask
EXTRA = "extra/"  # prefix of arrays that a method sends beside the weights
CLIENT_ERROR = 1000  # Flower keeps the codes below for itself
SERVER = "the server"  # whom a node blames for a message that cannot be read
RATES = (1e-30, 1e39)  # a rate that is absurd is the user's; one that is none is refused
LONGEST_ERROR = 2000  # characters of a client's error that are kept
SCALAR = -1  # in place of a row count: the array has no axis to concatenate along


# --- arrays -----------------------------------------------------------------------------------------


class View(Array):
    """An array that stays in this process: it is turned into bytes only if somebody sends it on."""

    def __init__(self, ndarray: np.ndarray) -> None:
        self.dtype, self.shape, self.stype = str(ndarray.dtype), tuple(ndarray.shape), SType.NUMPY
        self.__dict__["ndarray"] = ndarray

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return Array(np.ascontiguousarray(self.numpy())).data

    def numpy(self) -> np.ndarray:
        """The array itself, not a copy."""
        return cast(np.ndarray, self.__dict__["ndarray"])

    def deflate(self) -> bytes:
        return Array(np.ascontiguousarray(self.numpy())).deflate()


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as a record that can be sent, in their own order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def view_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as a record for this process, without copies."""
    record = ArrayRecord()  # given a dict, it would make an Array of each View
    for name, value in arrays.items():
        record[name] = View(value)
    return record


def from_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The arrays of a record by name."""
    return {name: value.numpy() for name, value in record.items()}


def taken_over(array: Array) -> np.ndarray:
    """The numpy array in a received ``array``, which is empty afterwards: its bytes are used, not copied.

    They are copied where somebody else holds them too, as ``BytesIO.getbuffer`` does of itself.
    """
    if isinstance(array, View):
        return array.numpy()
    if array.stype != SType.NUMPY:
        raise FedgeoError(f"an array of a reply is of type {array.stype!r}, not {SType.NUMPY}")
    buffer = io.BytesIO(array.__dict__.pop("data"))
    array.__dict__.pop("_chunks", None)
    try:
        version = np.lib.format.read_magic(buffer)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read_header(buffer)
        values = np.frombuffer(buffer.getbuffer(), dtype, offset=buffer.tell())
        values = values.reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # frombuffer refuses objects, reshape a wrong length, a header may be anything
        raise FedgeoError(f"an array of a reply cannot be read: {error}") from None
    if (str(values.dtype), values.shape) != (array.dtype, tuple(array.shape)):
        said = f"{array.dtype} {tuple(array.shape)}"
        raise FedgeoError(f"an array of a reply is {values.dtype} {values.shape}, announced as {said}")
    return values


def weights_record(weights: Weights, extra: Weights | None = None) -> ArrayRecord:
    """Model weights, and what a method sends beside them under the prefix ``extra/``."""
    return to_record(_named(weights, extra or {}))


def _named(weights: Weights, extra: Weights) -> dict[str, np.ndarray]:
    named = {**weights, **{EXTRA + name: value for name, value in extra.items()}}
    return {name: value.detach().cpu().numpy() for name, value in named.items()}


def split_weights(record: ArrayRecord) -> tuple[Weights, Weights]:
    """(weights, extra) of a record made by ``weights_record``."""
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in from_record(record).items()}
    weights = {name: value for name, value in tensors.items() if not name.startswith(EXTRA)}
    extra = {name.removeprefix(EXTRA): value for name, value in tensors.items() if name.startswith(EXTRA)}
    return weights, extra


def as_sent(record: ArrayRecord, sent: ArrayRecord) -> ArrayRecord:
    """The record in the types in which its arrays were sent out."""
    return to_record({name: v.astype(sent[name].dtype, copy=False) for name, v in from_record(record).items()})


def payload_bytes(content: RecordDict) -> int:
    """Bytes of array payload in a message, without headers: the same on every engine."""
    total = 0
    for record in content.array_records.values():
        for array in record.values():
            total += int(np.prod(array.shape, dtype=np.int64)) * np.dtype(array.dtype).itemsize
    return total


# --- as plain values ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What one client sent, or was sent, as plain values by name."""

    arrays: dict[str, np.ndarray]
    metrics: dict[str, Any]
    config: dict[str, Any]


def part(content: RecordDict, who: str, records: tuple[str, ...]) -> Part:
    """The content as plain values. Raises FedgeoError, which begins with ``who``, unless it holds just ``records``."""
    only(list(content.keys()), records, who, "record")
    kinds = {ARRAYS: ArrayRecord, METRICS: MetricRecord, CONFIG: ConfigRecord}
    for key in records:
        if not isinstance(content[key], kinds[key]):
            raise FedgeoError(f"{who}: {key} must be of type {kinds[key].__name__}")
    try:
        arrays = from_record(content.array_records.get(ARRAYS) or ArrayRecord())
    except Exception as error:  # numpy's own, of bytes that are no array
        raise FedgeoError(f"{who}: an array cannot be read ({type(error).__name__})") from None
    return Part(
        arrays,
        dict(content.metric_records.get(METRICS) or {}),
        dict(content.config_records.get(CONFIG) or {}),
    )


def request(content: RecordDict, records: tuple[str, ...]) -> Part:
    """What the server asks, as plain values, without what every message says. Raises FedgeoError as ``part`` does."""
    own = RecordDict({key: record for key, record in content.items() if key not in (COHORT, AGREED)})
    return part(own, SERVER, records)


# --- one client's content ---------------------------------------------------------------------------


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


def train_reply(weights: Weights, extra: Weights, metrics: Mapping[str, float | int]) -> RecordDict:
    """A training reply as Flower's own strategies want it: one ArrayRecord, one MetricRecord."""
    return RecordDict({ARRAYS: view_record(_named(weights, extra)), METRICS: metrics_record(metrics)})


def read_update(reply: Message) -> Update:
    """One client's training reply. Raises FedgeoError naming the client if a weight is not finite."""
    client = reply.metadata.src_node_id
    weights, extra = split_weights(reply.content.array_records[ARRAYS])
    for name, value in {**weights, **extra}.items():
        if not bool(torch.isfinite(value).all()):
            raise FedgeoError(f"client {client}: {name} holds values that are not finite")
    return Update(client, weights, extra, number(reply.content.metric_records[METRICS], "num-examples"))


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
    asked, extra = split_weights(content.array_records[ARRAYS])
    if extra or not isinstance(config.get("question"), str):
        raise FedgeoError(f"{SERVER}: its question must be a word and tensors")
    return str(config["question"]), asked


def read_answer(reply: Message) -> Weights:
    """One client's answer to a question. Raises FedgeoError naming the client if a value is not finite."""
    answer, _ = split_weights(reply.content.array_records[ARRAYS])
    for name, value in answer.items():
        if not bool(torch.isfinite(value).all()):
            raise FedgeoError(f"client {reply.metadata.src_node_id}: {name} holds values that are not finite")
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


def read_round(content: RecordDict) -> int:
    """The round a training message is for."""
    return whole(content.config_records[CONFIG].get("server-round"), SERVER, "server-round", 1)


def read_rate(content: RecordDict) -> float:
    """The learning rate of a training message."""
    return real(content.config_records[CONFIG].get("lr"), SERVER, "lr", *RATES)


def write_steps(config: ConfigRecord, steps: Mapping[int, int]) -> None:
    """Say in ``config`` how many gradient steps each client takes in a round."""
    config["steps-of"], config["steps"] = list(steps), list(steps.values())


def read_steps(content: RecordDict, client: int) -> int | None:
    """The gradient steps of ``client`` in a round, None where its epochs say. FedgeoError where it was left out."""
    config = content.config_records[CONFIG]
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


# --- cohorts ----------------------------------------------------------------------------------------


def cohort_message(message: Message, node: int, clients: list[int], agreed: "Agreed | None" = None) -> Message:
    """The message to ``node`` that asks what ``message`` asks, of these of its clients."""
    content = RecordDict(dict(message.content.items()))
    content[COHORT] = ConfigRecord({"clients": clients})
    if agreed is not None:
        content[AGREED] = agreed.to_record()
    return Message(
        content, node, message.metadata.message_type, ttl=message.metadata.ttl, group_id=message.metadata.group_id
    )


def answer(
    message: Message,
    hosted: list[int],
    handle: Callable[[int, RecordDict], RecordDict],
    tell: Callable[[Exception], str] = describe,
) -> Message:
    """Run ``handle`` for each client that ``message`` asks for (all ``hosted`` where it names none).

    A client that raises becomes an error of its own, in the words of ``tell``, and leaves the others be. Only
    clients that this node hosts are served.
    """
    replies: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    here = set(hosted)
    with one_thread():
        for client in asked(message, hosted):
            try:
                if client not in here:
                    raise FedgeoError(f"client {client} is not on this node, which hosts {hosted}")
                replies[client] = handle(client, message.content)
            except Exception as error:  # the others' work must not be lost
                if not isinstance(error, FedgeoError):
                    log.exception("client %d", client)
                errors[client] = tell(error)
    content = join(replies)
    content[COHORT] = cohort_record(list(replies), errors)
    return Message(content, reply_to=message)


def asked(message: Message, hosted: list[int]) -> list[int]:
    """The clients that ``message`` asks: all ``hosted`` where it names none."""
    return read_clients(message.content) if COHORT in message.content.config_records else hosted


def read_clients(content: RecordDict) -> list[int]:
    """The clients that a message asks."""
    clients = content.config_records[COHORT].get("clients")
    if not isinstance(clients, list) or len(set(clients)) != len(clients):
        raise FedgeoError(f"{SERVER}: a message must name each client that it asks once")
    return [whole(client, SERVER, "a client's number") for client in clients]


def cohort_record(clients: list[int], errors: Mapping[int, str]) -> ConfigRecord:
    """Which clients a joined reply holds, in order, and the errors of the others."""
    return ConfigRecord(
        {
            "clients": clients,
            "failed": list(errors),
            "errors": list(errors.values()),
            "peak_memory_mb": peak_memory_mb(),
        }
    )


def join(replies: Mapping[int, RecordDict]) -> RecordDict:
    """One RecordDict from one a client; all must hold the same records with the same names."""
    joined = RecordDict()
    if not replies:
        return joined
    parts = list(replies.values())
    for key, record in parts[0].items():
        records = [part[key] for part in parts]
        if isinstance(record, ArrayRecord):
            arrays: dict[str, np.ndarray] = {}
            rows: dict[str, Any] = {}
            for name in record:
                values = [cast(ArrayRecord, r)[name].numpy() for r in records]
                scalar = values[0].ndim == 0
                rows[name] = [SCALAR if scalar else len(v) for v in values]
                arrays[name] = np.stack(values) if scalar else np.concatenate(values)
            joined[key] = to_record(arrays)
            joined[f"{key}.rows"] = ConfigRecord(rows)
        elif isinstance(record, MetricRecord):
            joined[key] = MetricRecord({n: [cast(float, r[n]) for r in records] for n in record})
        else:
            joined[key] = ConfigRecord({n: [cast(str, r[n]) for r in records] for n in record})
    return joined


def split(content: RecordDict) -> tuple[float, dict[int, RecordDict], dict[int, str]]:
    """(the node's peak memory in MB, {client: its content}, {client: its error}) of a joined reply.

    The clients' arrays are views of the joined ones, whose bytes are taken over: the reply holds none afterwards.
    Raises FedgeoError for a reply that is not put together as ``join`` does.
    """
    try:
        return _split(content)
    except FedgeoError:
        raise
    except Exception as error:  # whatever a record that is not what it should be makes fail
        raise FedgeoError(f"a joined reply cannot be read ({type(error).__name__}: {error})") from None


def _split(content: RecordDict) -> tuple[float, dict[int, RecordDict], dict[int, str]]:
    cohort = content.config_records[COHORT]
    only(cohort, ("clients", "failed", "errors", "peak_memory_mb"), "a joined reply", "field")
    clients, failed, errors = (list(cast(list[Any], cohort[name])) for name in ("clients", "failed", "errors"))
    if len({*clients, *failed}) != len(clients) + len(failed) or len(failed) != len(errors):
        raise FedgeoError("a joined reply must name every client once, and give each that failed one error")
    for client in (*clients, *failed):
        whole(client, "a joined reply", "a client's number")
    parts = {client: RecordDict() for client in clients}
    for key, record in content.items():
        if key == COHORT or (key.endswith(".rows") and key.removesuffix(".rows") in content.array_records):
            continue
        if isinstance(record, ArrayRecord):
            rows = content.config_records[f"{key}.rows"]
            only(rows, record, "a joined reply", "array")
            taken = {
                name: _rows(taken_over(value), cast(list[int], rows[name]), len(clients))
                for name, value in record.items()
            }
            for i, client in enumerate(clients):
                parts[client][key] = view_record({name: values[i] for name, values in taken.items()})
            continue
        for name, values in record.items():
            if not isinstance(values, list) or len(values) != len(clients):
                raise FedgeoError(f"a joined reply must hold {len(clients)} values of {name}, one a client")
        kind = type(record)
        for i, client in enumerate(clients):
            parts[client][key] = kind({n: cast(list, values)[i] for n, values in record.items()})
    peak = real(cohort["peak_memory_mb"], "a joined reply", "peak_memory_mb", 0.0)
    return peak, parts, {client: str(text)[:LONGEST_ERROR] for client, text in zip(failed, errors, strict=True)}


def _rows(values: np.ndarray, rows: list[int], clients: int) -> list[np.ndarray]:
    """The clients' pieces of a joined array."""
    if len(rows) != clients or not clients:
        raise FedgeoError(f"a joined reply of {clients} clients counts the rows of {len(rows)}")
    if set(rows) == {SCALAR} and len(values) == clients:
        return [np.asarray(v) for v in values]
    if sum(rows) != len(values) or min(rows) < 0:
        raise FedgeoError(f"a joined reply has {len(values)} rows where its clients claim {rows}")
    return np.split(values, np.cumsum(rows)[:-1])


def is_missing(reply: Message) -> bool:
    """Whether a client lacks what the message referred to: it is to be sent that, and asked again."""
    return reply.has_error() and (reply.error.reason or "").startswith(MISSING)


def error_reply(request: Message, reason: str) -> Message:
    """A client's error as Flower's strategies see it."""
    return Message(Error(CLIENT_ERROR, reason), reply_to=request)


def place_request(node: int) -> Message:
    """The first message to a node: which place it has in the simulation."""
    return Message(RecordDict(), node, PLACE)


def place_reply(message: Message, context: Context) -> Message:
    """A simulated node's answer: partition-id and num-partitions."""
    place = ConfigRecord({"place": list(node_place(context))})
    return Message(RecordDict({CONFIG: place}), reply_to=message)


def read_place(content: RecordDict) -> tuple[int, int]:
    """(partition-id, num-partitions) of a place reply. FedgeoError where it is none."""
    config = part(content, "a node", (CONFIG,)).config
    only(config, ("place",), "a node", "field")
    if not isinstance(config["place"], list) or len(config["place"]) != 2:
        raise FedgeoError("a node: its place must be two numbers")
    places = whole(config["place"][1], "a node", "num-partitions", 1)
    return whole(config["place"][0], "a node", "partition-id", most=places - 1), places


@dataclass(frozen=True)
class Agreed:
    """What every message of a deployment says: which run it is of, on which code, over which classes.

    run: 16 hexadecimal digits. classes: in the order of the labels; None before the sites have said theirs.
    """

    run: str
    code: str
    classes: tuple[str, ...] | None = None

    def to_record(self) -> ConfigRecord:
        record = ConfigRecord({"run": self.run, "code": self.code})
        if self.classes is not None:
            record["classes"] = list(self.classes)
        return record

    @staticmethod
    def of(content: RecordDict) -> "Agreed":
        """What a message says. Raises FedgeoError where it says none of it, or not in the right form."""
        if AGREED not in content.config_records:
            raise FedgeoError("the message does not say which run it is of: is the server set to engine=deployment?")
        record = content.config_records[AGREED]
        run, code, classes = record.get("run"), record.get("code"), record.get("classes")
        if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{16}", run) or not isinstance(code, str):
            raise FedgeoError("the message's run and code are not in the right form")
        if classes is None:
            return Agreed(run, code)
        if not isinstance(classes, list) or len({str(name) for name in classes}) != len(classes):
            raise FedgeoError("the message's classes must be a list of different names")
        return Agreed(run, code, tuple(str(name) for name in classes))


def site_request(node: int, agreed: Agreed) -> Message:
    """The first message to a site: who it is."""
    return Message(RecordDict({AGREED: agreed.to_record()}), node, PLACE)


def site_reply(message: Message, name: str) -> Message:
    """A site's answer: its name."""
    return Message(RecordDict({CONFIG: ConfigRecord({"name": name})}), reply_to=message)


def read_site(content: RecordDict) -> str:
    """The name in a site's answer. FedgeoError for another kind of node, or a name that is none."""
    name = content.config_records[CONFIG].get("name") if CONFIG in content.config_records else None
    if name is not None:
        only(part(content, "a site", (CONFIG,)).config, ("name",), "a site", "field")
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise FedgeoError("a node did not tell a site's name: start it with data-path and name in its node-config")
    return name


def node_place(context: Context) -> tuple[int, int]:
    """(partition-id, num-partitions) of a simulated node. Raises FedgeoError for any other node."""
    if set(context.node_config) != {"partition-id", "num-partitions"}:
        raise FedgeoError(
            f"node-config must hold exactly partition-id and num-partitions, not {sorted(context.node_config)}"
        )
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def read_loss(content: RecordDict) -> list[tuple[float, float]]:
    """[(examples, training loss)] of a training reply, [] of any other."""
    metrics = content.metric_records.get(METRICS)
    if metrics is None or "train_loss" not in metrics:
        return []
    return [(number(metrics, "num-examples"), number(metrics, "train_loss"))]


def read_clamped(content: RecordDict) -> list[float]:
    """[SPDnet's clamped fraction] where a training reply tells it."""
    metrics = content.metric_records.get(METRICS)
    return [number(metrics, "clamped_fraction")] if metrics is not None and "clamped_fraction" in metrics else []


def number(metrics: MetricRecord, name: str) -> float:
    """A metric that is one number."""
    return float(cast(float, metrics[name]))


def peak_memory_mb() -> float:
    """The largest resident size this process has had, in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
