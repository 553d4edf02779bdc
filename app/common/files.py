"""Files and folders that are written whole or not at all, and those that are their owner's alone.

All are written under another name in the same folder, and renamed once they are complete. What is made in a folder
that only its owner may enter is its owner's alone too: folders 0700, files 0600.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

OTHERS = 0o077  # the bits of a mode that let others than the owner in


def private_folder(path: Path) -> None:
    """A folder that its owner alone may enter; those above it that are missing are made so too.

    One that is there already is closed to others, where it is this user's own. Raises OSError where it cannot be made.
    """
    _make(path, lambda above: 0o700)
    if path.stat().st_mode & OTHERS:
        with suppress(OSError):  # an administrator's, who has settled who may enter
            path.chmod(0o700)


def make_folder(path: Path) -> None:
    """A folder with those above it, each its owner's alone where the one that it is made in is."""
    _make(path, lambda above: 0o777 & ~_closed(above))


def _make(path: Path, mode: Callable[[Path], int]) -> None:
    """A folder and those above it that are missing, with the mode that is told for one made in a folder."""
    if not path.parent.is_dir():
        _make(path.parent, mode)
    try:
        path.mkdir(mode(path.parent))
    except OSError:  # there already, on a disk that cannot be written too
        if not path.is_dir():
            raise


@contextmanager
def private_files() -> Iterator[None]:
    """Within, whatever this process writes is its owner's alone, by whichever library."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def _closed(folder: Path) -> int:
    """The bits of a mode that what is made in ``folder`` must not have."""
    return 0 if folder.stat().st_mode & OTHERS else OTHERS


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a text file, on the disk when this returns. Raises OSError, which names ``path``."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomic(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write ``content`` as ``atomic_file`` does; the folders above are made."""
    make_folder(path.parent)
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
        mode = 0o666 & ~_closed(path.parent)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
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
    make_folder(part)
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time: whoever else enters the same folder, which is made, waits until the block has ended."""
    make_folder(folder)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
