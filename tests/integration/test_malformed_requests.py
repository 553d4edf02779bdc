"""Requests to nodes, each valid but for one field: none is served, and nothing is kept of it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

import client_app
from app import messages
from app.client.client_states import ClientStates
from app.client.geometry_store import array_digest
from tests.malformed import LEAST, Change, Faults, fresh, of_arrays, of_numbers, of_records, with_arrays
from tests.recorded_runs import Recorded, recorded_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    return partial(recorded_run, tmp_path_factory)


def form_faults(content: RecordDict, allowed: dict[str, Callable[[Any], bool]]) -> Iterator[Change]:
    """What may be wrong with any request. allowed: what of the tried values is no fault, by name."""
    yield from of_numbers(content, messages.CONFIG, allowed)
    yield from of_records(content, (messages.COHORT,))
    yield from asked_of(content)


def asked_of(content: RecordDict) -> Iterator[Change]:
    """Whom a message asks."""
    for value in ([99], [-1], [0, 0], ["0"], [0.0], "0", 0, [True]):
        made = fresh(content)
        made.config_records[messages.COHORT]["clients"] = value
        yield f"asks {value}", made
    made = fresh(content)
    del made.config_records[messages.COHORT]["clients"]
    yield "asks it knows not whom", made


def is_rate(value: Any) -> bool:
    """What a client can train with; without a rate it trains with that of its own configuration."""
    return value in (None, 0.5, 1e18, 10**18) and not isinstance(value, bool)


def no_word(value: Any) -> bool:
    """What stands for no shapes at all where a run has some is no fault of form."""
    return value in (None, "")


def train_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_arrays(content, rng)
    yield from form_faults(content, {"lr": is_rate, "geometry": no_word})
    for digest in ("0" * 63, "0" * 65, "G" * 64, "../../../etc/passwd", "0" * 64):
        made = fresh(content)
        made.config_records[messages.CONFIG]["geometry"] = digest
        yield f"geometry={digest[:20]} of {len(digest)}", made


def evaluate_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_arrays(content, rng)
    yield from form_faults(content, {"lr": lambda _: True, "geometry": lambda _: True})


def digested(content: RecordDict) -> RecordDict:
    """With the digest made anew, so that a fault is found for what it is."""
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    content.config_records[messages.CONFIG]["geometry"] = array_digest(arrays)
    return content


def shared_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    """What all clients are sent before the first round."""
    for what, changed in of_arrays(content, rng, rows_may_differ=("domains",)):
        yield what, digested(changed)


def geometry_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from shared_requests(content, rng)
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name, change in {
        "eigenvectors": lambda v: 2 * v,
        "eigenvalues": lambda v: -v,
        "total_variance": lambda v: 0 * v,
        "classes": lambda v: v + 1,
        "ranks": lambda v: v + 1,
        "counts": lambda v: 0 * v,
    }.items():
        yield f"{name}: other values", digested(with_arrays(content, arrays | {name: change(arrays[name])}))
    yield from form_faults(content, {"lr": lambda _: True, "server-round": lambda _: True})


def word_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from form_faults(content, {})
    words = [chr(97 + rng.integers(26)) * int(rng.integers(1, 40)) for _ in range(40)]
    for word in (*words, "Means", " means", "means\0", "../means", "mean", "gradients"):
        for key in content.config_records[messages.CONFIG]:
            made = fresh(content)
            made.config_records[messages.CONFIG][key] = word
            if word != content.config_records[messages.CONFIG][key]:
                yield f"{key}={word!r}", made


def question_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    if messages.from_record(content.array_records[messages.ARRAYS]):
        yield from of_arrays(content, rng)
    yield from word_requests(content, rng)


def hello_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from asked_of(content)
    for clients in ([int(c)] for c in rng.integers(1000, 2**40, 240)):
        made = fresh(content)
        made.config_records[messages.COHORT]["clients"] = clients
        yield f"asks {clients}", made


REQUESTS: list[tuple[str, str, Faults]] = [
    ("ggeur", messages.HELLO, hello_requests),
    ("ggeur", messages.STATISTICS, word_requests),
    ("ggeur", messages.GEOMETRY, geometry_requests),
    ("site", messages.GEOMETRY, geometry_requests),
    ("fedfa", messages.GEOMETRY, shared_requests),
    ("fedmix", messages.GEOMETRY, shared_requests),
    ("shift", messages.GEOMETRY, shared_requests),
    ("ggeur", messages.TRAIN, train_requests),
    ("fedproto", messages.TRAIN, train_requests),
    ("rlavg", messages.TRAIN, train_requests),
    ("rlavg", messages.EVALUATE, evaluate_requests),
    ("mdm", messages.SUMS, question_requests),
    ("tangent_lr", messages.SUMS, question_requests),
]


@pytest.mark.parametrize(("run", "kind", "faults"), REQUESTS, ids=[f"{r}-{k}" for r, k, _ in REQUESTS])
def test_no_malformed_request_is_served(
    run: str,
    kind: str,
    faults: Faults,
    recorded: Callable[[str], Recorded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is answered by an error for every client, and nothing is kept of it."""
    requests = recorded(run).requests[kind]
    kept: list[str] = []
    monkeypatch.setattr(ClientStates, "save", lambda *_: kept.append("the state of a client"))
    monkeypatch.setattr("app.client.geometry_store.write_atomic", lambda path, *_, **__: kept.append(path.name))
    tried = 0
    for seed in range(20):
        request, context = requests[seed % len(requests)]
        for what, content in faults(request.content, np.random.default_rng(seed)):
            tried += 1
            reply = client_app.app(Message(content, request.metadata.dst_node_id, kind), context)
            if reply.has_error():
                said = [reply.error.reason]
            else:
                _, parts, errors = messages.split(reply.content)
                assert not parts, f"served: {what}"
                said = list(errors.values())
            assert said and all(said), what
            assert not any("\n" in str(text) for text in said), f"{what}: {said}"
        if tried >= LEAST:
            break
    assert tried >= LEAST
    assert kept == []
