"""Embeddings of images, made once and kept in a cache that is addressed by content."""

import hashlib
import logging
import os
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ..common.errors import WHERE_CACHES_GO, FedgeoError, cause
from ..common.files import atomic_file, make_folder
from ..common.memory import keep_freed_blocks
from .base import Encoder
from .images import Images

log = logging.getLogger(__name__)

SHARD = 1024
"""Embeddings in a file of the cache, and so the most that an interruption can lose."""

NORMALISATIONS = ("none", "l2")

_BATCHES_AHEAD = 2
_KEY = 32  # bytes of a SHA-256


@runtime_checkable
class Stamped(Protocol):
    """Images that tell cheaply whether one has changed since its digest was taken."""

    def stamp(self, index: int) -> str | None: ...


def embed(
    images: Images,
    indices: Sequence[int] | np.ndarray,
    encoder: Encoder,
    *,
    cache: Path | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Embeddings of ``images[i]`` for each i in ``indices``, as float32 (n, p), not normalised.

    cache: a folder that keeps embeddings by encoder and image content, and digests of files by path, size and time of
    modification; a second run reads no image. It may be shared by encoders, data sets and processes that run at the
    same time. An interrupted run goes on where it stopped; a file that was torn is thrown away and its part redone.
    progress(done, total) is called after each batch. Images are decoded in threads, ahead of the encoder.

    Raises FedgeoError naming the image that cannot be read or whose embedding is not finite.
    """
    keep_freed_blocks()
    wanted = np.asarray(indices, np.int64)
    out = np.empty((len(wanted), encoder.dimension), np.float32)
    with decoding_threads() as pool:
        if cache is None:
            shards, keys = None, [row.to_bytes(8) for row in range(len(wanted))]
        else:
            memo = Shards(Path(cache) / "digests", np.dtype((np.uint8, _KEY)))
            keys = remembered(images, wanted, lambda index: bytes.fromhex(images.digest(index)), memo, pool)
            folder = f"{encoder.name}-{encoder.precision}-{encoder.fingerprint[:32]}".replace("/", "_")
            shards = Shards(Path(cache) / "embeddings" / folder, np.dtype((np.float32, encoder.dimension)))
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        for key, value in shards.get(rows).items() if shards else ():
            out[rows.pop(key)] = value
        done = len(wanted) - sum(map(len, rows.values()))
        if progress:
            progress(done, len(wanted))
        order = list(rows)
        if shards and order:
            shards.make()
        first = wanted[[rows[key][0] for key in order]]
        with _saving(shards) as save, closing(_encoded(images, first, encoder, batch_size, pool)) as batches:
            for start, values in batches:
                made = order[start : start + len(values)]
                for key, value in zip(made, values, strict=True):
                    out[rows[key]] = value
                    done += len(rows[key])
                save(made, values)
                if progress:
                    progress(done, len(wanted))
    return out


@contextmanager
def _saving(shards: "Shards | None") -> Iterator[Callable[[list[bytes], np.ndarray], None]]:
    """What takes finished records and writes them shard by shard, the last ones also when it is interrupted."""
    keys: list[bytes] = []
    values: list[np.ndarray] = []

    def flush() -> None:
        if shards and keys:
            shards.put(keys, np.concatenate(values))
        keys.clear()
        values.clear()

    def save(more_keys: list[bytes], more_values: np.ndarray) -> None:
        keys.extend(more_keys)
        values.append(more_values)
        if len(keys) >= SHARD:
            flush()

    try:
        yield save
    finally:
        flush()


def normalise(embeddings: np.ndarray, how: str) -> np.ndarray:
    """Float32 embeddings (n, p), as they are (``none``) or each divided by its Euclidean length (``l2``).

    It is applied after the cache, which keeps the encoder's own output. A zero embedding has no direction and stays.
    """
    if how not in NORMALISATIONS:
        raise FedgeoError(f"normalisation must be one of {list(NORMALISATIONS)}, not {how!r}")
    plain = np.asarray(embeddings, np.float32)
    if how == "none":
        return plain
    length = np.linalg.norm(plain, axis=1, keepdims=True)
    return plain / np.where(length == 0, 1, length)


def decoding_threads() -> ThreadPoolExecutor:
    """Threads that decode images, as many as there are cores, at most eight."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(min(available or 1, 8))


def _encoded(
    images: Images, indices: np.ndarray, encoder: Encoder, batch_size: int, pool: ThreadPoolExecutor
) -> Generator[tuple[int, np.ndarray], None, None]:
    """(start, embeddings) batch by batch; the next batches are decoded while one is encoded."""

    def prepared(index: int) -> torch.Tensor:
        return encoder.preprocess(images[index])

    def started(batch: np.ndarray) -> list[Future[torch.Tensor]]:
        return [pool.submit(prepared, int(index)) for index in batch]

    batches = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    ahead = deque(started(batch) for batch in batches[:_BATCHES_AHEAD])
    try:
        for at, batch in enumerate(batches):
            ready = torch.stack([future.result() for future in ahead.popleft()])
            if at + _BATCHES_AHEAD < len(batches):
                ahead.append(started(batches[at + _BATCHES_AHEAD]))
            values = encoder.encode(ready).numpy()
            if (bad := np.flatnonzero(~np.isfinite(values).all(axis=1))).size:
                name = images.name(int(batch[bad[0]]))
                raise FedgeoError(f"{name}: its embedding by {encoder.name} is not finite: try precision=float32")
            yield at * batch_size, values
    finally:
        for futures in ahead:
            for future in futures:
                future.cancel()


def remembered(
    images: Images,
    indices: Sequence[int] | np.ndarray,
    compute: Callable[[int], bytes],
    memo: "Shards",
    pool: ThreadPoolExecutor,
) -> list[bytes]:
    """``compute(index)`` for each index; of a file that has not changed since it was last read, from the memo.

    memo: of values uint8 (n,), where ``compute`` gives n bytes. What it does not know is computed in the pool.
    """

    def stamp(index: int) -> bytes | None:
        text = images.stamp(int(index)) if isinstance(images, Stamped) else None
        return None if text is None else hashlib.sha256(text.encode(errors="surrogateescape")).digest()

    wanted = np.asarray(indices, np.int64)
    stamps = list(pool.map(stamp, wanted))
    known = memo.get(key for key in stamps if key is not None)
    unread = [at for at, key in enumerate(stamps) if key is None or key not in known]
    fresh = dict(zip(unread, pool.map(compute, wanted[unread].tolist()), strict=True))
    noted = {key: value for at, value in fresh.items() if (key := stamps[at]) is not None}
    if noted:
        memo.put(list(noted), np.frombuffer(b"".join(noted.values()), np.uint8).reshape(len(noted), -1))
    return [fresh[at] if at in fresh else known[key].tobytes() for at, key in enumerate(stamps)]  # type: ignore[index]


class Shards:
    """Values of one size by 32-byte keys, in a folder of files that are written whole and never changed.

    A file appears under its final name by an atomic rename, so that processes that write at once do not disturb one
    another; the name is the hash of the content, so that equal files coincide. Every record carries a checksum of its
    key and value; a record that fails it does not count, and a file that is no array of records is removed.
    """

    def __init__(self, folder: Path, value: np.dtype) -> None:
        self.folder = folder
        self.record = np.dtype([("key", f"V{_KEY}"), ("check", "<u4"), ("value", value)])

    def get(self, keys: Iterable[bytes]) -> dict[bytes, np.ndarray]:
        """The values of those keys that are held."""
        wanted = set(keys)
        found: dict[bytes, np.ndarray] = {}
        for file in sorted(self.folder.glob("*.npy")):
            if not wanted:
                break
            records = self._open(file)
            for row, key in enumerate(records["key"].tolist()):
                if key in wanted:
                    value = np.array(records["value"][row])
                    if _checksum(key, value) == records["check"][row]:
                        found[key] = value
                        wanted.remove(key)
                    else:
                        log.warning("%s: record %d is damaged and will be made again", file, row)
        return found

    def put(self, keys: Sequence[bytes], values: np.ndarray) -> None:
        """Write values (n, ...) under their keys as one file."""
        records = np.empty(len(keys), self.record)
        records["key"] = np.array(keys, f"V{_KEY}")
        records["value"] = values
        records["check"] = [_checksum(key, value) for key, value in zip(keys, records["value"], strict=True)]
        name = hashlib.sha256(records.tobytes()).hexdigest()[:32]
        self.make()
        try:
            with atomic_file(self.folder / f"{name}.npy", durable=True) as file:
                np.save(file, records, allow_pickle=False)
        except OSError as fault:
            raise self._unwritable(fault) from fault

    def make(self) -> None:
        """Make the folder, so that one that cannot be written shows before the work and not after it."""
        try:
            make_folder(self.folder)
        except OSError as fault:
            raise self._unwritable(fault) from fault

    def _unwritable(self, fault: OSError) -> FedgeoError:
        return FedgeoError(f"{self.folder}: the cache cannot be written ({cause(fault)}): {WHERE_CACHES_GO}")

    def _open(self, file: Path) -> np.ndarray:
        try:
            records = np.load(file, mmap_mode="r", allow_pickle=False)
            if records.dtype != self.record or records.ndim != 1:
                raise ValueError(f"{records.dtype} instead of {self.record}")
        except FileNotFoundError:  # another process has just removed it
            return np.empty(0, self.record)
        except (ValueError, EOFError, SyntaxError) as fault:
            log.warning("%s: torn (%s); removed, and will be made again", file, " ".join(str(fault).split()))
            file.unlink(missing_ok=True)
            return np.empty(0, self.record)
        return records


def _checksum(key: bytes, value: np.ndarray) -> int:
    return zlib.crc32(value.tobytes(), zlib.crc32(key))
