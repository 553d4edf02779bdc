"""Processed trials on disk, a folder for each subject, content and settings; read back as memory maps.

An entry is written under another name and renamed when it is complete, so processes that run side by side
never see half of one; an entry that was damaged later is recognised by its checksum and made again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...common.errors import WHERE_CACHES_GO, FedgeoError
from .trials import Trials

VERSION = 1  # to be raised when the processing changes


def file_hash(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(folder: Path, subject: str, settings: dict, process: Callable[[], Trials]) -> Trials:
    """``process()``'s trials, or those it gave before for the same subject and settings.

    settings: whatever decides the result, the hashes of the files included; anything json can write. The
    trials returned are a read-only memory map.
    """
    text = json.dumps([VERSION, subject, settings], sort_keys=True)
    readable = re.sub(r"[^\w.-]", "_", subject)
    entry = folder / f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    found = _load(entry)
    if found is not None:
        return found
    return _store(entry, process())


def _store(entry: Path, trials: Trials) -> Trials:
    """Write an entry beside its place and move it there; another process's equal entry may come first."""
    partial = entry.with_name(f"{entry.name}.{uuid.uuid4().hex}.tmp")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise FedgeoError(
            f"the cache of EEG trials cannot be written at {entry.parent}: {error.strerror}: {WHERE_CACHES_GO}"
        ) from error
    try:
        with (partial / "trials.npy").open("wb") as file:
            np.save(file, np.ascontiguousarray(trials.trials, dtype=np.float32))
            file.flush()
            os.fsync(file.fileno())
        fields = {
            field.name: getattr(trials, field.name) for field in dataclasses.fields(trials) if field.name != "trials"
        }
        fields |= {"labels": trials.labels.tolist(), "run": trials.run.tolist()}
        fields["checksum"] = _checksum(np.asarray(trials.trials, dtype=np.float32))
        (partial / "trials.json").write_text(json.dumps(fields), encoding="utf-8")
        _move(partial, entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    stored = _load(entry)
    return stored if stored is not None else trials


def _move(partial: Path, entry: Path) -> None:
    """Put a complete entry in its place, unless another process's whole one is there already."""
    while True:
        try:
            partial.rename(entry)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if _load(entry) is not None:  # else a damaged entry holds the place
                return
        damaged = entry.with_name(f"{entry.name}.{uuid.uuid4().hex}.old")
        with contextlib.suppress(FileNotFoundError):  # another process was quicker to take it away
            entry.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)


def _load(entry: Path) -> Trials | None:
    """An entry, or None where there is none that is whole."""
    try:
        fields = json.loads((entry / "trials.json").read_text(encoding="utf-8"))
        array = np.load(entry / "trials.npy", mmap_mode="r")
        if fields.pop("checksum") != _checksum(array):
            return None
        fields |= {key: tuple(fields[key]) for key in ("recordings", "channels", "classes", "notes")}
        fields |= {key: np.array(fields[key], dtype=np.int64) for key in ("labels", "run")}
        return Trials(trials=array, **fields)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _checksum(array: np.ndarray) -> int:
    """crc32 of the array's bytes, trial by trial so that a memory map is never copied whole."""
    value = zlib.crc32(repr((array.shape, array.dtype.str)).encode())
    for trial in array:
        value = zlib.crc32(trial.tobytes(), value)
    return value
