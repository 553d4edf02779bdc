"""How the clients of a node share one message: asked together, answered one by one, joined, and taken apart again.

``answer`` runs a handler once a client and joins the replies; ``split`` takes that message apart. Joined arrays are
concatenated along their first axis, so a reply is as large as its parts.
"""

import logging
import resource
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from ..common.errors import MENDABLE, FedgeoError, describe
from ..common.received import only
from ..common.seeds import one_thread
from .handshake import Agreed
from .records import AGREED, COHORT, SERVER, taken_over, to_record, view_record
from .schema import real, whole

log = logging.getLogger(__name__)

CLIENT_ERROR = 1000  # Flower keeps the codes below for itself
LONGEST_ERROR = 2000  # characters of a client's error that are kept
SCALAR = -1  # in place of a row count: the array has no axis to concatenate along


def cohort_message(message: Message, node: int, clients: list[int], agreed: Agreed | None = None) -> Message:
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
                if not isinstance(error, MENDABLE):  # the server has a line of those
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


def error_reply(request: Message, reason: str) -> Message:
    """A client's error as Flower's strategies see it."""
    return Message(Error(CLIENT_ERROR, reason), reply_to=request)


def peak_memory_mb() -> float:
    """The largest resident size this process has had, in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
