"""Replies to the server, each valid but for one field: none does harm, and none is taken for good."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from app import messages
from app.common.errors import FedgeoError
from app.strategies.handshake import compare
from tests.malformed import LEAST, Change, Faults, fresh, of_arrays, of_numbers, of_records, of_words, with_arrays
from tests.recorded_runs import Recorded, recorded_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    return partial(recorded_run, tmp_path_factory)


# --- replies of every kind ---


# keys of a policy that bind the site alone: the server does nothing by what they say
BINDS_THE_SITE = tuple(
    f"privacy: {key}"
    for key in ("releases", "encoders", "targets", "max_hidden", "max_epochs", "max_rounds", "max_size", "min_batch")
)


def hello_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from (fault for fault in of_words(content) if not fault[0].startswith(BINDS_THE_SITE))
    yield from of_records(content)
    yield from of_numbers(content, messages.CONFIG, {})


def array_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_arrays(content, rng)
    yield from of_records(content)


def statistics_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from array_faults(content, rng)
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name, change in {
        "classes": lambda v: v[::-1].copy(),
        "counts": lambda v: v + 1,
        "triangles": lambda v: -v,
        "ranks": lambda v: v + 1,
        "means": lambda v: v * 1e12,
        "factors": lambda v: v * 1e12,
    }.items():
        if arrays[name].size:
            yield f"{name}: other values", with_arrays(content, arrays | {name: change(arrays[name])})


def described_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_words(content)
    yield from of_records(content)
    rms = {"perturbation_rms": lambda v: v in (0, 0.5, True) and not isinstance(v, bool)}
    rms["perturbed"] = lambda v: v == 0 and isinstance(v, int) and not isinstance(v, bool)
    yield from of_numbers(content, messages.METRICS, rms)


def train_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from array_faults(content, rng)
    loss = {"train_loss": lambda v: v in (-1, 0, 0.5) and not isinstance(v, bool)}
    loss["clamped_fraction"] = lambda v: v is None or (v in (0, 0.5) and not isinstance(v, bool))
    yield from of_numbers(content, messages.METRICS, loss)
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name, value in arrays.items():
        if name.startswith("stiefel."):
            twice = value.copy()
            twice[:, 0] = twice[:, -1]
            for what, changed in (("twice as long", 2 * value), ("zero", 0 * value), ("a column twice", twice)):
                yield f"{name}: {what}", with_arrays(content, arrays | {name: changed})


def evaluate_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from array_faults(content, rng)
    yield from of_numbers(content, messages.METRICS, {})
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name in ("val.confusion", "test.confusion"):
        moved = arrays[name].copy()
        moved[0] += np.eye(moved.shape[-1], dtype=np.int64)
        yield f"{name}: other samples", with_arrays(content, arrays | {name: moved})
    same = np.full_like(arrays["test.domain"], arrays["test.domain"][0])
    yield "one domain twice", with_arrays(content, arrays | {"test.domain": same})


def sums_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from array_faults(content, rng)
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name in arrays.keys() & {"sum", "sums"}:
        skew = arrays[name].copy()
        skew[..., 0, 1] += np.abs(skew).max()
        yield f"{name}: not symmetric", with_arrays(content, arrays | {name: skew})
    for name in arrays.keys() & {"count", "counts"}:
        yield f"{name}: one more", with_arrays(content, arrays | {name: arrays[name] + 1})


REPLIES: list[tuple[str, str, Faults]] = [
    ("ggeur", messages.HELLO, hello_faults),
    ("rlavg", messages.HELLO, hello_faults),
    ("ggeur", messages.STATISTICS, statistics_faults),
    ("fedfa", messages.STATISTICS, array_faults),
    ("shift", messages.STATISTICS, statistics_faults),
    ("lda", messages.STATISTICS, statistics_faults),
    ("means_only", messages.STATISTICS, statistics_faults),
    ("site", messages.HELLO, hello_faults),
    ("site", messages.STATISTICS, statistics_faults),
    ("site", messages.GEOMETRY, described_faults),
    ("site", messages.TRAIN, train_faults),
    ("projavg", messages.TRAIN, train_faults),
    ("ggeur", messages.GEOMETRY, described_faults),
    ("ggeur", messages.TRAIN, train_faults),
    ("fedproto", messages.TRAIN, train_faults),
    ("rlavg", messages.TRAIN, train_faults),
    ("rlavg", messages.EVALUATE, evaluate_faults),
    ("mdm", messages.SUMS, sums_faults),
    ("tangent_lr", messages.SUMS, sums_faults),
]


@pytest.mark.parametrize(("run", "kind", "faults"), REPLIES, ids=[f"{r}-{k}" for r, k, _ in REPLIES])
def test_no_malformed_reply_is_taken(run: str, kind: str, faults: Faults, recorded: Callable[[str], Recorded]) -> None:
    told = recorded(run)
    replies = told.server.replies
    rng = np.random.default_rng(1)
    entries = told.replies[kind]
    everyone = [entry for entry in entries if entry[0].metadata.dst_node_id in replies.handshakes]
    assert len(everyone) == len(entries)

    def changes() -> Iterator[tuple[Message, Change]]:
        for number, (request, reply) in enumerate(islice(entries, 8)):
            replies.check(request, fresh(reply))  # it is valid as it is
            for what, content in faults(reply, rng):
                yield request, (f"{number}: {what}", content)

    tried = 0
    for request, (what, content) in changes():
        tried += 1
        client = request.metadata.dst_node_id
        before = replies.handshakes[client]
        with pytest.raises(FedgeoError) as caught:
            replies.check(request, content)
            # what is well formed, but not what the other clients say, is refused where all of them are heard
            after = replies.handshakes[client]
            compare(dict(after.facts), f"client {client}", dict(before.facts), "another client")
            pytest.fail(f"taken for good: {what}")
        replies.handshakes[client] = before
        text = str(caught.value)
        assert text.startswith(f"client {client}"), f"{what}: {text}"
        assert "\n" not in text, what
    assert tried >= LEAST


def test_no_malformed_mean_of_a_batch_is_taken(recorded: Callable[[str], Recorded]) -> None:
    told = recorded("fedmix")
    rng, tried = np.random.default_rng(1), 0
    for request, reply in told.replies[messages.STATISTICS]:
        told.server.replies.check(request, fresh(reply))
        for what, content in array_faults(reply, rng):
            tried += 1
            with pytest.raises(FedgeoError):
                told.server.replies.check(request, content)
                pytest.fail(f"taken for good: {what}")
    assert tried >= LEAST


# --- joined replies of whole nodes ---


def joined(parts: dict[int, RecordDict]) -> RecordDict:
    content = messages.join({client: fresh(part) for client, part in parts.items()})
    content[messages.COHORT] = messages.cohort_record(list(parts), {77: "it is broken"})
    return content


def joined_faults(parts: dict[int, RecordDict], rng: np.random.Generator) -> Iterator[Change]:
    whole = joined(parts)
    clients = list(parts)
    cohorts: dict[str, list[Any]] = {
        "clients": [[], clients[:-1], [*clients, 78], [clients[0]] * len(clients), [-1, *clients[1:]], 1, "0", [0.5]],
        "failed": [[], [clients[0]], [77, 78], [77, 77], [-1], 77, ["77"]],
        "errors": [[], ["a", "b"], 3],
        "peak_memory_mb": [float("nan"), -1.0, "much", [1.0], float("inf")],
        "unknown": [1],
    }
    for name, values in cohorts.items():
        for value in values:
            if name == "clients" and value == clients:
                continue
            made = joined(parts)
            made.config_records[messages.COHORT][name] = value
            yield f"{name}={value}", made
        if name in whole.config_records[messages.COHORT]:
            made = joined(parts)
            del made.config_records[messages.COHORT][name]
            yield f"no {name}", made
    for name in whole.array_records[messages.ARRAYS]:
        counted = list(whole.config_records[f"{messages.ARRAYS}.rows"][name])
        for rows in ([], counted[:-1], [*counted, 1], [counted[0] + 1, *counted[1:]], [-1] * len(counted), 3, ["1"]):
            made = joined(parts)
            made.config_records[f"{messages.ARRAYS}.rows"][name] = rows
            yield f"{name}: rows {rows}", made
        made = joined(parts)
        del made.config_records[f"{messages.ARRAYS}.rows"][name]
        yield f"{name}: no rows", made
        whole_array = whole.array_records[messages.ARRAYS][name]
        for what, changed in {
            "no bytes": ("data", b""),
            "half its bytes": ("data", whole_array.data[: len(whole_array.data) // 2]),
            "more bytes": ("data", whole_array.data + b"0"),
            "other bytes": ("data", rng.bytes(200)),
            "a pickle": ("data", b"\x80\x04K\x01."),
            "objects": ("data", whole_array.data.replace(b"<f", b"|O", 1).replace(b"<i", b"|O", 1)),
            "announced as another type": ("dtype", "float16"),
            "announced as no type": ("dtype", "nonsense"),
            "announced larger": ("shape", (10**6, 10**6)),
            "announced smaller": ("shape", (0,)),
            "of another kind": ("stype", "torch.tensor"),
        }.items():
            made = joined(parts)
            kept = made.array_records[messages.ARRAYS][name]
            fields = {"dtype": kept.dtype, "shape": kept.shape, "stype": kept.stype, "data": kept.data}
            made.array_records[messages.ARRAYS][name] = Array(**(fields | {changed[0]: changed[1]}))
            yield f"{name}: {what}", made
    for name in whole.metric_records[messages.METRICS]:
        for value in (1.0, [], [1.0] * (len(parts) + 1)):
            made = joined(parts)
            made.metric_records[messages.METRICS][name] = value
            yield f"{name}={value}", made
    made = joined(parts)
    del made[f"{messages.ARRAYS}.rows"]
    yield "no rows at all", made
    made = joined(parts)
    del made[messages.COHORT]
    yield "no cohort", made


@pytest.mark.parametrize("run", ["ggeur", "rlavg"])
def test_no_malformed_joined_reply_is_taken(run: str, recorded: Callable[[str], Recorded]) -> None:
    kind = messages.TRAIN
    parts = {request.metadata.dst_node_id: reply for request, reply in recorded(run).replies[kind]}
    assert messages.split(joined(parts))[1].keys() == parts.keys()
    tried = 0
    for round_of in range(4):
        some = dict(islice(parts.items(), 1 + round_of % 3, 4))
        for what, content in joined_faults(some, np.random.default_rng(round_of)):
            tried += 1
            with pytest.raises(FedgeoError) as caught:
                messages.split(content)
                pytest.fail(f"taken for good: {what}")
            assert "\n" not in str(caught.value), what
    assert tried >= LEAST
