"""Messages that are valid but for one field, made from a valid one."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from app import messages

LEAST = 200  # malformed messages to each handler and each aggregation

Change = tuple[str, RecordDict]
"""What was changed, and the content that came of it."""

Faults = Callable[[RecordDict, np.random.Generator], Iterator[Change]]
"""All that is tried on one valid content."""


def fresh(content: RecordDict) -> RecordDict:
    """A copy whose records can be changed."""
    made = RecordDict()
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            made[key] = messages.to_record({name: np.array(v) for name, v in messages.from_record(record).items()})
        elif isinstance(record, MetricRecord):
            made[key] = MetricRecord(dict(record.items()))
        else:
            made[key] = ConfigRecord(dict(record.items()))
    return made


def with_arrays(content: RecordDict, arrays: dict[str, np.ndarray]) -> RecordDict:
    made = fresh(content)
    made[messages.ARRAYS] = messages.to_record(arrays)
    return made


def of_arrays(content: RecordDict, rng: np.random.Generator, rows_may_differ: tuple[str, ...] = ()) -> Iterator[Change]:
    """Every fault of every array. rows_may_differ: arrays to which another row does no harm."""
    arrays = messages.from_record(content.array_records[messages.ARRAYS])
    for name, value in arrays.items():
        rest = {other: kept for other, kept in arrays.items() if other != name}
        yield f"{name} is missing", with_arrays(content, rest)
        yield f"{name} has another name", with_arrays(content, rest | {name + "_": value})
        for fault, changed in of_array(value, rng):
            if name in rows_may_differ and fault == "one row more":
                continue
            if value.shape == (1,) and fault == "no axis":  # a record makes one of it
                continue
            yield f"{name}: {fault}", with_arrays(content, arrays | {name: changed})
    yield "an unknown array", with_arrays(content, arrays | {"unknown": np.zeros(2)})
    yield "an unknown array beside", with_arrays(content, arrays | {"auxiliary/unknown": np.zeros(2, np.float32)})


def of_array(value: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Faults of type, shape and value."""
    types = {"f": ("float16", "complex128", "int64"), "i": ("int32", "float64", "bool", "uint64")}[value.dtype.kind]
    if value.dtype == np.float64:
        types = (*types, "longdouble")
    for dtype in types:
        yield f"of type {dtype}", value.astype(dtype)
    yield "text", value.astype("U8")
    yield "one axis more", value[None]
    if value.ndim:
        yield "no axis", np.array(value.flat[0] if value.size else 0, value.dtype)
        row = value[:1] if len(value) else np.zeros((1, *value.shape[1:]), value.dtype)
        yield "one row more", np.concatenate([value, row])
    if value.ndim and len(value):
        yield "one row less", value[:-1]
        yield "no rows", value[:0]
    if value.ndim > 1:
        yield "flat", value.ravel()
    if not value.size:
        return
    if value.dtype.kind == "f":
        numbers: tuple[Any, ...] = (np.nan, np.inf, -np.inf, 1e30)
    else:
        numbers = (-7, 2**62, -(2**62))
    for number in numbers:
        changed = np.array(value)
        changed.flat[rng.integers(changed.size)] = number
        yield f"holds {number}", changed


def of_numbers(content: RecordDict, key: str, allowed: dict[str, Callable[[Any], bool]]) -> Iterator[Change]:
    """Faults of single numbers and words. allowed: what of the tried values is no fault, by name."""
    endless = float("inf")
    tried: tuple[Any, ...] = (-1, 0, 0.5, 10**18, 1e18, float("nan"), endless, -endless, [1.0], [], "", "1", True, b"1")
    record = content[key]
    for name in list(record):
        made = fresh(content)
        del made[key][name]
        if not allowed.get(name, never)(None):
            yield f"{name} is missing", made
        for value in tried:
            made = fresh(content)
            try:
                made[key][name] = value
            except TypeError:
                continue  # the record refuses it before it is sent
            if (value == record[name] and type(value) is type(record[name])) or allowed.get(name, never)(value):
                continue
            yield f"{name}={value!r}", made
    if key == messages.METRICS:
        made = fresh(content)
        made[key]["unknown"] = 1.0
        yield "an unknown figure", made


def never(_: Any) -> bool:
    return False


def of_records(content: RecordDict, known: tuple[str, ...] = ()) -> Iterator[Change]:
    """Records that are missing, of another kind, or unknown. known: keys that every message may have."""
    for key in list(content.keys()):
        if key in known:
            continue
        made = fresh(content)
        del made[key]
        yield f"no {key}", made
        made = fresh(content)
        made[key] = ConfigRecord({"x": 1}) if not isinstance(content[key], ConfigRecord) else MetricRecord({"x": 1})
        yield f"{key} of another kind", made
    made = fresh(content)
    made["unknown"] = ConfigRecord({"x": 1})
    yield "an unknown record", made


def of_words(content: RecordDict) -> Iterator[Change]:
    """Faults of what is said in words."""
    text = content.config_records[messages.CONFIG]["json"]
    whole = json.loads(text)
    for fault, value in of_json(whole):
        yield fault, _saying(content, json.dumps(value))
    for broken in ("", "{", text[:-1], text + "}", "null", "[]", "1", '"text"', "NaN", text.replace("[", "[NaN,", 1)):
        yield f"says {broken[:20]!r}", _saying(content, broken)
    yield "says too much", _saying(content, json.dumps(whole) + " " * 2**20)
    yield "is nested too deeply", _saying(content, "[" * 100_000)


def _saying(content: RecordDict, text: str) -> RecordDict:
    made = fresh(content)
    made.config_records[messages.CONFIG]["json"] = text
    return made


def of_json(whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Faults of one key of a mapping, lists and mappings in it included."""
    wrong: tuple[Any, ...] = (-1, 10**12, 1.5, "x" * 300, [[]], {"a": {"b": 1}}, [{}], True)
    for key, value in whole.items():
        yield f"no {key}", {k: v for k, v in whole.items() if k != key}
        yield f"{key} has another name", {(k + "_" if k == key else k): v for k, v in whole.items()}
        for other in wrong:
            if type(other) is not type(value) or isinstance(other, str | list | dict):
                yield f"{key}={str(other)[:20]}", whole | {key: other}
        if isinstance(value, list) and value:
            for other in (-1, 10**12, 1.5, None, [], "", {}):
                changed = copy.copy(value)
                changed[len(value) // 2] = other
                yield f"{key} holds {other}", whole | {key: changed}
            yield f"{key} is longer", whole | {key: [*value, value[0]]}
            yield f"{key} is shorter", whole | {key: value[:-1]}
        if isinstance(value, dict):
            for fault, changed in of_json(value):
                yield f"{key}: {fault}", whole | {key: changed}
    yield "an unknown key", whole | {"unknown": 1}
