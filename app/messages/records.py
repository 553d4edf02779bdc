"""Flower's records as plain values and back: the keys of all messages, arrays without needless copies, checks."""

import functools
import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..common.errors import FedgeoError
from ..common.npy_header import read_header
from ..common.received import only
from ..models.base import Weights
from .flower_private import SType

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # the keys that Flower's own strategies use
COHORT = "cohort"  # which clients a message asks, or answers for
AGREED = "agreed"  # what a deployment's messages say beside what they ask
TRAIN, EVALUATE = "train", "evaluate"
PLACE, HELLO, STATISTICS, GEOMETRY = "query.place", "query.hello", "query.stats", "train.geometry"
SUMS = "query.sums"
INITIAL = "query.initial"
FINAL = "query.final"
JOINING = "query.joining"
AUXILIARY = "auxiliary/"  # prefix of arrays that a method sends beside the weights
SERVER = "the server"  # whom a node blames for a message that cannot be read


class View(Array):
    """An array that stays in this process: it is turned into bytes only if somebody sends it on."""

    def __init__(self, ndarray: np.ndarray) -> None:
        # past Flower's own __setattr__, which marks what has changed since it was turned into bytes
        self.__dict__.update(dtype=_name(ndarray.dtype), shape=ndarray.shape, stype=SType.NUMPY, ndarray=ndarray)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return Array(np.ascontiguousarray(self.numpy())).data

    def numpy(self) -> np.ndarray:
        """The array itself, not a copy."""
        return cast(np.ndarray, self.__dict__["ndarray"])

    def deflate(self) -> bytes:
        return Array(np.ascontiguousarray(self.numpy())).deflate()


@functools.cache
def _name(dtype: np.dtype) -> str:
    """numpy's name of a type, which takes longer to spell than the rest of a View."""
    return str(dtype)


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as a record that can be sent, in their own order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def view_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as a record for this process, without copies."""
    record = ArrayRecord()  # given a dict, it would make an Array of each View
    for name, value in arrays.items():
        record[name] = View(value)
    return record


def from_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The arrays of a record by name."""
    return {name: value.numpy() for name, value in record.items()}


def taken_over(array: Array) -> np.ndarray:
    """The numpy array in a received ``array``, which is empty afterwards: its bytes are used, not copied.

    They are copied where somebody else holds them too, as ``BytesIO.getbuffer`` does of itself.
    """
    if isinstance(array, View):
        return array.numpy()
    if array.stype != SType.NUMPY:
        raise FedgeoError(f"an array of a reply is of type {array.stype!r}, not {SType.NUMPY}")
    buffer = io.BytesIO(array.__dict__.pop("data"))
    array.__dict__.pop("_chunks", None)
    try:
        shape, by_column, dtype = read_header(buffer)
        values = np.frombuffer(buffer.getbuffer(), dtype, offset=buffer.tell())
        values = values.reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # frombuffer refuses objects, reshape a wrong length, a header may be anything
        raise FedgeoError(f"an array of a reply cannot be read: {error}") from None
    if (str(values.dtype), values.shape) != (array.dtype, tuple(array.shape)):
        said = f"{array.dtype} {tuple(array.shape)}"
        raise FedgeoError(f"an array of a reply is {values.dtype} {values.shape}, announced as {said}")
    return values


def weights_record(weights: Weights, auxiliary: Weights | None = None) -> ArrayRecord:
    """Model weights, and what a method sends beside them under the prefix ``auxiliary/``."""
    return to_record(named_arrays(weights, auxiliary or {}))


def named_arrays(weights: Weights, auxiliary: Weights) -> dict[str, np.ndarray]:
    """Model weights, and what goes beside them, as numpy arrays by the names in which they are sent."""
    named = {**weights, **{AUXILIARY + name: value for name, value in auxiliary.items()}}
    return {name: value.detach().cpu().numpy() for name, value in named.items()}


def split_weights(record: ArrayRecord) -> tuple[Weights, Weights]:
    """(weights, extra) of a record made by ``weights_record``."""
    return split_arrays(from_record(record))


def split_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[Weights, Weights]:
    """(weights, extra) of arrays by the names in which they are sent."""
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()}
    weights = {name: value for name, value in tensors.items() if not name.startswith(AUXILIARY)}
    auxiliary = {name.removeprefix(AUXILIARY): value for name, value in tensors.items() if name.startswith(AUXILIARY)}
    return weights, auxiliary


def as_sent(record: ArrayRecord, sent: ArrayRecord) -> ArrayRecord:
    """The record in the types in which its arrays were sent out."""
    return to_record({name: v.astype(sent[name].dtype, copy=False) for name, v in from_record(record).items()})


def payload_bytes(content: RecordDict) -> int:
    """Bytes of array payload in a message, without headers: the same on every engine."""
    arrays = (array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values())
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)


def array_digest(arrays: dict[str, np.ndarray]) -> str:
    """sha256 of named arrays: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


# --- as plain values ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What one client sent, or was sent, as plain values by name."""

    arrays: dict[str, np.ndarray]
    metrics: dict[str, Any]
    config: dict[str, Any]


def part(content: RecordDict, who: str, records: tuple[str, ...]) -> Part:
    """The content as plain values. Raises FedgeoError, which begins with ``who``, unless it holds just ``records``."""
    only(list(content.keys()), records, who, "record")
    kinds = {ARRAYS: ArrayRecord, METRICS: MetricRecord, CONFIG: ConfigRecord}
    for key in records:
        if not isinstance(content[key], kinds[key]):
            raise FedgeoError(f"{who}: {key} must be of type {kinds[key].__name__}")
    found = {key: cast(Any, content[key]) for key in records}
    try:
        arrays = from_record(found.get(ARRAYS) or ArrayRecord())
    except Exception as error:  # numpy's own, of bytes that are no array
        raise FedgeoError(f"{who}: an array cannot be read ({type(error).__name__})") from None
    return Part(arrays, dict(found.get(METRICS) or {}), dict(found.get(CONFIG) or {}))


def request(content: RecordDict, records: tuple[str, ...]) -> Part:
    """What the server asks, as plain values, without what every message says. Raises FedgeoError as ``part`` does."""
    own = RecordDict({key: record for key, record in content.items() if key not in (COHORT, AGREED)})
    return part(own, SERVER, records)
