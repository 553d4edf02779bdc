"""Files and folders that are written whole or not at all.

All are written under another name in the same folder, and renamed once they are complete.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def write_atomic(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write ``content`` as ``atomic_file`` does; the folders above are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, durable=durable) as file:
        file.write(content)


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """What the block writes to the file becomes ``path``: readers see the old file or the new one, never a part.

    durable: it also outlives a power cut from the end of the block, at the cost of waiting for the disk. Raises
    OSError, which names ``path``, where it cannot be written; no part stays behind.
    """
    part = _beside(path)
    try:
        with part.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:  # a full disk is not filled further
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder for the block to fill, which becomes ``path``; the folders above are made.

    Raises OSError where it cannot be made, or ``path`` is there already and no empty folder.
    """
    part = _beside(path)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time: whoever else enters the same folder, which is made, waits until the block has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
