"""Files that are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write ``content`` so that readers see the old file or the new one, never a part.

    durable: it also outlives a power cut from the moment of return, at the cost of waiting for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # a full disk is not filled further
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
