"""How often a site answers one round of a run: if again and again, a bound on rounds would be none."""

import hashlib
import json
from pathlib import Path

from flwr.app import RecordDict

from .. import messages
from ..common.files import exclusive, write_atomic
from ..config.node_config import Refusal

MOST = 3  # different requests of a round: a run that was broken off may come back with other weights


def answer_round(folder: Path, kind: str, content: RecordDict) -> None:
    """Note in ``folder`` that a round of training or evaluation is asked for. Raises Refusal for one too many.

    The same request may come as often as it gets lost.
    """
    number, digest = messages.read_round(content), _digest(content)
    path = folder / f"{kind}-{number}.json"
    with exclusive(folder):
        before = json.loads(path.read_text()) if path.exists() else []
        if digest in before:
            return
        if len(before) >= MOST:
            raise Refusal(f"{kind}: round {number} was asked for with {MOST} different weights or settings already")
        write_atomic(path, json.dumps([*before, digest]).encode())


def _digest(content: RecordDict) -> str:
    """Of the arrays of a request and what goes with them."""
    digest = hashlib.sha256()
    for name, value in sorted(messages.from_record(content.array_records[messages.ARRAYS]).items()):
        digest.update(f"{name} {value.dtype} {value.shape}\0".encode() + value.tobytes())
    digest.update(json.dumps(dict(content.config_records[messages.CONFIG]), sort_keys=True, default=str).encode())
    return digest.hexdigest()
