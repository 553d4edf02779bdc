"""Messages from elsewhere, each valid but for one field: none does harm, and none is taken for good."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, Message, RecordDict

import client_app
from app import figures, messages
from app.checkpoint import ClientStates
from app.engines.inprocess import InProcessGrid
from app.errors import FedgeoError
from app.received import array_digest
from app.replies import Replies
from app.server import Server
from app.strategies.greeting import compare
from tests.malformed import Change, fresh, of_arrays, of_numbers, of_records, of_words, with_arrays
from tests.running import run_in_process

LEAST = 200  # malformed messages to each handler and each aggregation
SMALL = ("federation.rounds=1", "training.epochs=1")
RUNS = {
    "site": ("privacy=site", "federation.clients=4", "federation.beta=0.5", "augmentation.step2=false", *SMALL),
    "lda": ("method=lda", "augmentation=none", "federation.clients=4"),
    "means_only": ("method=means_only", "augmentation=none", "federation.clients=4", "federation.beta=5"),
    "shift": ("augmentation=shift", "data=features", "federation.partition=domain", "federation.clients=null", *SMALL),
    "projavg": ("experiment=eeg_demo", "method=projavg", "data.subjects=8", "data.trials_per_class=12", *SMALL),
    "ggeur": ("method=scaffold", "federation.clients=4", "federation.beta=0.5", "augmentation.step2=false", *SMALL),
    "fedproto": ("method=fedproto", "augmentation=none", "federation.clients=4", *SMALL),
    "fedmix": ("augmentation=fedmix", "federation.clients=6", *SMALL),
    "fedfa": ("augmentation=fedfa", "federation.clients=4", *SMALL),
    "rlavg": ("experiment=eeg_demo", "method=rlavg", "data.subjects=8", "data.trials_per_class=12", *SMALL),
    "mdm": ("experiment=eeg_demo", "method=mdm", "data.subjects=8", "data.trials_per_class=12", *SMALL),
    "tangent_lr": ("experiment=eeg_demo", "method=tangent_lr", "data.subjects=8", "data.trials_per_class=12", *SMALL),
}


@dataclass
class Recorded:
    """All that was said in one run. replies: what each client answered, by message type. requests: what nodes got."""

    server: Server
    replies: dict[str, list[tuple[Message, RecordDict]]] = field(default_factory=dict)
    requests: dict[str, list[tuple[Message, Context]]] = field(default_factory=dict)


_runs: dict[str, Recorded] = {}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    def of(name: str) -> Recorded:
        if name not in _runs:
            folder = tmp_path_factory.mktemp(name)
            words = RUNS[name] if name != "shift" else (*RUNS[name], f"data.path={domains(folder / 'domains.npz')}")
            _runs[name] = _record(words, folder / "run")
        return _runs[name]

    return of


def domains(path: Path) -> Path:
    """Embeddings of three classes in three domains."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 20)
    places = range(3)
    arrays = {f"d{k}_X": (labels[:, None] + k + rng.normal(size=(60, 8))).astype("f4") for k in places}
    np.savez(path, **arrays, **{f"d{k}_y": labels for k in places})
    return path


def _record(words: tuple[str, ...], folder: Path) -> Recorded:
    kept: list[Recorded] = []
    begin, check, call = Server.__init__, Replies.check, InProcessGrid._call

    def init(self: Server, *given: Any) -> None:
        begin(self, *given)
        kept.append(Recorded(self))

    def checked(self: Replies, request: Message, reply: RecordDict) -> None:
        kept[0].replies.setdefault(request.metadata.message_type, []).append((request, fresh(reply)))
        check(self, request, reply)

    def called(self: InProcessGrid, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        if kept:
            kept[0].requests.setdefault(message.metadata.message_type, []).append((message, context))
        return call(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "__init__", init)
        patch.setattr(Replies, "check", checked)
        patch.setattr(InProcessGrid, "_call", called)
        for drawn in ("curves", "label_distribution", "confusion", "domain_bars", "similarity_heatmap"):
            patch.setattr(figures, drawn, lambda *_: None)
        run_in_process(folder, *words)
    return kept[0]


# --- the server: replies of every kind ---

Faults = Callable[[RecordDict, np.random.Generator], Iterator[Change]]


def hello_faults(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_words(content)
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
def test_no_malformed_reply_is_taken(
    run: str, kind: str, faults: Faults, recorded: Callable[[str], Recorded]
) -> None:
    told = recorded(run)
    replies = told.server.replies
    rng = np.random.default_rng(1)
    entries = told.replies[kind]
    everyone = [entry for entry in entries if entry[0].metadata.dst_node_id in replies.hello]
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
        before = replies.hello[client]
        with pytest.raises(FedgeoError) as caught:
            replies.check(request, content)
            # what is well formed, but not what the other clients say, is refused where all of them are heard
            after = replies.hello[client]
            compare(dict(after.facts), f"client {client}", dict(before.facts), "another client")
            pytest.fail(f"taken for good: {what}")
        replies.hello[client] = before
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


# --- the server: joined replies of whole nodes ---


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


# --- nodes: requests of every kind ---


def config_faults(content: RecordDict, allowed: dict[str, Callable[[Any], bool]]) -> Iterator[Change]:
    yield from of_numbers(content, messages.CONFIG, allowed)


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
    return value in (0.5, 1e18, 10**18) and not isinstance(value, bool)


def no_word(value: Any) -> bool:
    """What stands for no shapes at all where a run has some is no fault of form."""
    return value in (None, "")


def train_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_arrays(content, rng)
    yield from config_faults(content, {"lr": is_rate, "geometry": no_word})
    yield from of_records(content, (messages.COHORT,))
    yield from asked_of(content)
    for digest in ("0" * 63, "0" * 65, "G" * 64, "../../../etc/passwd", "0" * 64):
        made = fresh(content)
        made.config_records[messages.CONFIG]["geometry"] = digest
        yield f"geometry={digest[:20]} of {len(digest)}", made


def evaluate_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from of_arrays(content, rng)
    yield from config_faults(content, {"lr": lambda _: True, "geometry": lambda _: True})
    yield from of_records(content, (messages.COHORT,))
    yield from asked_of(content)


def geometry_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    """With the digest made anew, so that the faults are found for what they are."""
    for what, changed in of_arrays(content, rng, rows_may_differ=("domains",)):
        arrays = messages.from_record(changed.array_records[messages.ARRAYS])
        changed.config_records[messages.CONFIG]["geometry"] = array_digest(arrays)
        yield what, changed
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name, change in {
        "eigenvectors": lambda v: 2 * v,
        "eigenvalues": lambda v: -v,
        "total_variance": lambda v: 0 * v,
        "classes": lambda v: v + 1,
        "ranks": lambda v: v + 1,
        "counts": lambda v: 0 * v,
    }.items():
        made = with_arrays(content, arrays | {name: change(arrays[name])})
        sent = messages.from_record(made.array_records[messages.ARRAYS])
        made.config_records[messages.CONFIG]["geometry"] = array_digest(sent)
        yield f"{name}: other values", made
    yield from config_faults(content, {"lr": lambda _: True, "server-round": lambda _: True})
    yield from of_records(content, (messages.COHORT,))
    yield from asked_of(content)


def peer_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    for what, changed in of_arrays(content, rng, rows_may_differ=("domains",)):
        arrays = messages.from_record(changed.array_records[messages.ARRAYS])
        changed.config_records[messages.CONFIG]["geometry"] = array_digest(arrays)
        yield what, changed


def word_requests(content: RecordDict, rng: np.random.Generator) -> Iterator[Change]:
    yield from config_faults(content, {})
    yield from of_records(content, (messages.COHORT,))
    yield from asked_of(content)
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


REQUESTS: list[tuple[str, str, Callable[[RecordDict, np.random.Generator], Iterator[Change]]]] = [
    ("ggeur", messages.HELLO, hello_requests),
    ("ggeur", messages.STATISTICS, word_requests),
    ("ggeur", messages.GEOMETRY, geometry_requests),
    ("site", messages.GEOMETRY, geometry_requests),
    ("fedfa", messages.GEOMETRY, peer_requests),
    ("fedmix", messages.GEOMETRY, peer_requests),
    ("shift", messages.GEOMETRY, peer_requests),
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
    faults: Callable[[RecordDict, np.random.Generator], Iterator[Change]],
    recorded: Callable[[str], Recorded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is answered by an error for every client, and nothing is kept of it."""
    requests = recorded(run).requests[kind]
    kept: list[str] = []
    monkeypatch.setattr(ClientStates, "save", lambda *_: kept.append("the state of a client"))
    monkeypatch.setattr("app.received.write_atomic", lambda path, *_, **__: kept.append(path.name))
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
