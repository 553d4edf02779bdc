"""What the server says where sums are masked, and a client's masked part."""

import re
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from ..common.errors import FedgeoError
from ..common.received import only
from ..masking.roster import Roster
from .records import ARRAYS, CONFIG, SERVER, from_record, part, to_record
from .schema import whole

STATISTIC_BITS, WEIGHT_BITS = 36, 30  # of the fraction: sums of squares of unit vectors, and of weights by samples
FIELDS = ("mask-attempt", "mask-clients", "mask-names", "mask-keys", "mask-classes")
PART = "masked"  # the one array of a masked reply


def phase(kind: str, what: str = "") -> str:
    """The name of what is summed: a message's type, and which statistics it asks for."""
    return f"{kind} {what}".rstrip()


def write_roster(config: ConfigRecord, roster: Roster) -> None:
    """Tell in ``config`` who takes part in masked sums."""
    values: tuple[str | list[int] | list[str], ...] = (
        roster.attempt,
        list(roster.keys),
        [roster.names[client] for client in roster.keys],
        [key.hex() for key in roster.keys.values()],
        list(roster.classes),
    )
    for field, value in zip(FIELDS, values, strict=True):
        config[field] = value


def read_roster(content: RecordDict) -> Roster | None:
    """What ``write_roster`` told, None where sums are not masked. Raises FedgeoError for what it cannot have told."""
    config: dict[str, Any] = dict(content.config_records.get(CONFIG) or {})
    told = {field: config[field] for field in FIELDS if field in config}
    if not told:
        return None
    only(told, FIELDS, SERVER, "field")
    attempt, clients, names, keys, classes = told.values()
    if not isinstance(attempt, str) or not re.fullmatch("[0-9a-f]{16}", attempt):
        raise FedgeoError(f"{SERVER}: mask-attempt must be 16 hexadecimal digits")
    if not all(isinstance(value, list) for value in (clients, names, keys, classes)):
        raise FedgeoError(f"{SERVER}: who takes part in a masked sum must be told in lists")
    if not len(set(clients)) == len(clients) == len(names) == len(keys):
        raise FedgeoError(f"{SERVER}: a masked sum needs a name and a key of each client, once")
    if not all(isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key) for key in keys):
        raise FedgeoError(f"{SERVER}: a public key must be 64 hexadecimal digits")
    numbers = [whole(client, SERVER, "a client's number") for client in clients]
    return Roster(
        attempt,
        {client: str(name) for client, name in zip(numbers, names, strict=True)},
        {client: bytes.fromhex(key) for client, key in zip(numbers, keys, strict=True)},
        tuple(whole(label, SERVER, "a class") for label in classes),
    )


def masked_reply(masked: np.ndarray) -> RecordDict:
    """A client's part of a masked sum, uint64 (n,)."""
    return RecordDict({ARRAYS: to_record({PART: masked})})


def read_masked(content: RecordDict) -> np.ndarray:
    """What ``masked_reply`` was given."""
    return from_record(content.array_records[ARRAYS])[PART]


def check_masked(reply: RecordDict, length: int, who: str) -> None:
    """Refuse a reply that is not one masked part of ``length`` words. Raises FedgeoError, which begins with ``who``."""
    arrays = part(reply, who, (ARRAYS,)).arrays
    only(arrays, (PART,), who, "array")
    found = arrays[PART]
    if found.dtype != np.uint64 or found.shape != (length,):
        raise FedgeoError(f"{who}: a masked part must be uint64 ({length},), not {found.dtype} {found.shape}")
