"""All that was said in a run, by client and in both directions, as numbers: what an eavesdropping server has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from app import messages
from app.server.reply_validation import ReplyValidator
from tests.malformed import fresh
from tests.running import run_in_process

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Line:
    """One question to one client, and its answer."""

    kind: str
    client: int
    asked: Arrays
    said: Arrays
    reply: RecordDict


class Transcript(list[Line]):
    """Of a run with ``summary``, which is empty where the run was refused."""

    summary: dict[str, Any]

    def of(self, kind: str, client: int | None = None) -> Iterator[Line]:
        return (line for line in self if line.kind == kind and client in (None, line.client))

    def one(self, kind: str, client: int) -> Line:
        """The first of its kind."""
        return next(self.of(kind, client))


def arrays_of(content: RecordDict) -> Arrays:
    record = content.array_records.get(messages.ARRAYS)
    return {} if record is None else {name: np.array(value) for name, value in messages.from_record(record).items()}


def transcribe(patch: pytest.MonkeyPatch) -> Transcript:
    """What is said from now on in this process."""
    said, check = Transcript(), ReplyValidator.check

    def checked(self: ReplyValidator, request: Message, reply: RecordDict) -> None:
        meta = request.metadata
        said.append(
            Line(meta.message_type, meta.dst_node_id, arrays_of(request.content), arrays_of(reply), fresh(reply))
        )
        check(self, request, reply)

    patch.setattr(ReplyValidator, "check", checked)
    return said


def transcript(folder: Path, *overrides: str) -> Transcript:
    """All that was said in one run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        said = transcribe(patch)
        said.summary = run_in_process(folder / "run", *overrides)
    return said


def leak_and_stop(folder: Path, *overrides: str) -> tuple[Transcript, Transcript]:
    """The same run under privacy=research, where attacks succeed, and under privacy=site, where none may."""
    leak, stop = (transcript(folder / name, *overrides, f"privacy={name}") for name in ("research", "site"))
    return leak, stop
