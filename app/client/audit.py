"""The log that a site can show its auditor: what was sent, when, how much, and which classes and counts it told of."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from .. import messages
from ..common.files import append_line, make_folder

FILE = "audit.jsonl"


def record(folder: Path, run: str, request: Message, reply: Message, classes: Sequence[str]) -> None:
    """Append a line about ``reply``, before it is sent, to the audit log in ``folder``.

    classes: the names that the run's labels stand for. A reply that says of an error has the error's text and nothing
    else.
    """
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": run,
        "message": request.metadata.message_type,
        "round": _round(request),
    }
    if reply.has_error():
        line |= {"bytes": 0, "error": reply.error.reason}
    else:
        line |= {"bytes": messages.payload_bytes(reply.content), **_described(reply.content, classes)}
    make_folder(folder)
    append_line(folder / FILE, json.dumps(line))


def _round(request: Message) -> int | None:
    """The round that was asked for, None before the rounds."""
    if request.has_error() or messages.CONFIG not in request.content.config_records:
        return None
    number = request.content.config_records[messages.CONFIG].get("server-round")
    return number if isinstance(number, int) else None


def _described(content: RecordDict, names: Sequence[str]) -> dict[str, Any]:
    """All that a reply holds: texts and numbers as they are, arrays by type and shape, and the samples by class."""
    line: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, held in content.items():
        if isinstance(held, ArrayRecord):
            arrays |= messages.from_record(held)
        elif isinstance(held, MetricRecord):
            line.setdefault("numbers", {}).update({name: _one(value) for name, value in held.items()})
        elif key == messages.COHORT:
            line.setdefault("numbers", {})["peak_memory_mb"] = held["peak_memory_mb"]
            if held["errors"]:
                line["error"] = _one(held["errors"])
        elif not key.endswith(".rows"):
            line.setdefault("words", {}).update({name: _text(name, _one(value)) for name, value in held.items()})
    if arrays:
        line["arrays"] = {name: [str(value.dtype), *value.shape] for name, value in arrays.items()}
    if counted := _counted(arrays, names):
        line["classes"] = counted
    return line


def _one(value: Any) -> Any:
    """A value of the one client that a site is, which replies hold as a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _text(name: str, value: Any) -> Any:
    """What a configuration says; a JSON text (hello) as the values that it is."""
    return json.loads(value) if name == "json" else value


def _counted(arrays: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, int]:
    """Samples by class, where the arrays tell them: of statistics, or of an evaluation's confusions."""
    if "classes" in arrays and "counts" in arrays:
        pairs = zip(arrays["classes"].tolist(), arrays["counts"].tolist(), strict=True)
        return {names[label]: int(count) for label, count in pairs}
    if "test.confusion" in arrays:
        rows = sum(arrays[f"{part}.confusion"].sum(axis=(0, 2)) for part in ("val", "test"))
        return {name: int(count) for name, count in zip(names, np.asarray(rows), strict=True) if count}
    return {}
