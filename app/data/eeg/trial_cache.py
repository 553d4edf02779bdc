"""Processed trials on disk, a folder for each subject, content and settings; read back as memory maps.

An entry is written under another name and renamed when it is complete, so processes that run side by side
never see half of one; an entry that was damaged later is recognised by its checksum and made again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import re
import shutil
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...common.errors import WHERE_CACHES_GO, FedgeoError, cause
from ...common.files import atomic_folder, write_atomic
from .trials import Trials

VERSION = 2  # to be raised when the processing changes


def file_hash(path: Path, start: int = 0) -> str:
    """The sha256 of a file's bytes from ``start`` on, in hexadecimal."""
    with path.open("rb") as file:
        file.seek(start)
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


def remembered_json(folder: Path, settings: dict, compute: Callable[[], dict]) -> dict:
    """``compute()``, a dict that json can hold, or what it gave before for the same settings."""
    text = json.dumps([VERSION, settings], sort_keys=True)
    entry = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(entry.read_text(encoding="utf-8")))
    found = compute()
    try:
        write_atomic(entry, json.dumps(found).encode())
    except OSError as error:
        raise FedgeoError(f"the cache cannot be written at {folder}: {error.strerror}: {WHERE_CACHES_GO}") from error
    return found


def _store(entry: Path, trials: Trials) -> Trials:
    """Write an entry, unless another process's equal one comes first."""
    fields = {field.name: getattr(trials, field.name) for field in dataclasses.fields(trials) if field.name != "trials"}
    fields |= {"labels": trials.labels.tolist(), "run": trials.run.tolist()}
    array = np.ascontiguousarray(trials.trials, dtype=np.float32)
    fields["checksum"] = _checksum(array)
    try:
        with atomic_folder(entry) as folder:
            np.save(folder / "trials.npy", array)
            (folder / "trials.json").write_text(json.dumps(fields), encoding="utf-8")
            if _load(entry) is None:
                _remove(entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not entry.parent.is_dir():
            raise FedgeoError(
                f"the cache of EEG trials cannot be written at {entry.parent}: {cause(error)}: {WHERE_CACHES_GO}"
            ) from error
    stored = _load(entry)
    return stored if stored is not None else trials


def _remove(damaged: Path) -> None:
    """Take away what is in an entry's place; another process may be quicker."""
    aside = damaged.with_name(f".{damaged.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        damaged.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()


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
