"""Runs of every kind, once each, with all that was said in them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from app.grids.in_process import InProcessGrid
from app.server.reply_validation import ReplyValidator
from app.server.run import Server
from tests.malformed import fresh
from tests.running import run_in_process

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


def recorded_run(factory: pytest.TempPathFactory, name: str) -> Recorded:
    """The run of this name in ``RUNS``, kept for the next test of the same process that asks for it."""
    if name not in _runs:
        folder = factory.mktemp(name)
        words = RUNS[name] if name != "shift" else (*RUNS[name], f"data.path={domains(folder / 'domains.npz')}")
        _runs[name] = _record(words, folder / "run")
    return _runs[name]


def domains(path: Path) -> Path:
    """Embeddings of three classes in three domains."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 20)
    places = range(3)
    arrays = {f"d{k}_X": (labels[:, None] + k + rng.normal(size=(60, 8))).astype("f4") for k in places}
    np.savez(path, **arrays, **{f"d{k}_y": labels for k in places})
    return path


def _record(words: tuple[str, ...], folder: Path) -> Recorded:
    kept: list[Recorded] = []
    begin, check, call = Server.__init__, ReplyValidator.check, InProcessGrid._call

    def init(self: Server, *given: Any) -> None:
        begin(self, *given)
        kept.append(Recorded(self))

    def checked(self: ReplyValidator, request: Message, reply: RecordDict) -> None:
        kept[0].replies.setdefault(request.metadata.message_type, []).append((request, fresh(reply)))
        check(self, request, reply)

    def called(self: InProcessGrid, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        if kept:
            kept[0].requests.setdefault(message.metadata.message_type, []).append((message, context))
        return call(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "__init__", init)
        patch.setattr(ReplyValidator, "check", checked)
        patch.setattr(InProcessGrid, "_call", called)
        run_in_process(folder, *words)
    return kept[0]
