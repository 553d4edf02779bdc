"""Messages from elsewhere, each valid but for one field: none does harm, and none is taken for good."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

import client_app
from app import figures, messages
from app.algorithms import load as load_algorithm
from app.config import load
from app.engines.cohort import CohortGrid
from app.engines.inprocess import InProcessGrid
from app.errors import FedgeoError
from app.node import array_digest
from app.replies import Replies
from app.seeds import one_thread
from app.server import Server
from app.strategies.federated import Federated
from app.strategies.ggeur import GGEUR
from app.strategies.phased import Phased
from app.strategies.rate import Rate
from tests.malformed import Change, fresh, of_arrays, of_numbers, of_records, of_words, with_arrays
from tests.running import run_in_process

LEAST = 200  # malformed messages to each handler and each aggregation
SMALL = ("federation.rounds=1", "training.epochs=1")
RUNS = {
    "ggeur": ("method=scaffold", "federation.clients=4", "federation.beta=0.5", "augmentation.step2=false", *SMALL),
    "fedproto": ("method=fedproto", "augmentation=none", "federation.clients=4", *SMALL),
    "fedmix": ("augmentation=fedmix", "federation.clients=4", *SMALL),
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
            _runs[name] = _record(name, tmp_path_factory.mktemp(name) / "run")
        return _runs[name]

    return of


def _record(name: str, folder: Path) -> Recorded:
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
        run_in_process(folder, *RUNS[name])
    return kept[0]


def refused(judge: Callable[[RecordDict], None], changes: Iterable[Change], least: int = LEAST) -> None:
    """Every change must be refused with one line that says why; there must be enough of them."""
    tried: set[str] = set()
    for what, content in changes:
        tried.add(what)
        with pytest.raises(FedgeoError) as caught:
            judge(content)
            pytest.fail(f"taken for good: {what}")
        text = str(caught.value)
        assert "\n" not in text and len(text) < 500, what
    assert len(tried) >= least, f"only {len(tried)} faults"


# --- the server: replies of every kind ---

EXAMPLES = {"num-examples": lambda value: value is None and False}
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
        before = dict(replies.hello)
        with pytest.raises(FedgeoError) as caught:
            replies.check(request, content)
            pytest.fail(f"taken for good: {what}")
        text = str(caught.value)
        assert text.startswith(f"client {request.metadata.dst_node_id}"), f"{what}: {text}"
        assert "\n" not in text, what
        assert replies.hello == before
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
