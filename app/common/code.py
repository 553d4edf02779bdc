"""The package's own files: where they lie, and the hash by which two nodes know that they run the same code."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
# in a clone conf/ stands beside app/, in an installed package it lies within
CONF = next(folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir())


@functools.cache
def code_hash() -> str:
    """sha256 of the package's code and configuration: the same in a clone, in a bundle of Flower's and in a wheel.

    Files count under the names that they have in a clone, whatever their line endings.
    """
    files = dict((*_files(PACKAGE, "*.py", "app"), *_files(CONF, "*.yaml", "conf")))
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def _files(folder: Path, pattern: str, name: str) -> Iterator[tuple[str, Path]]:
    """Each file of this pattern in and below ``folder``, with its name below ``name``; nothing in hidden folders."""
    for path in folder.rglob(pattern):
        inside = path.relative_to(folder)
        if not any(part.startswith(".") for part in inside.parts):
            yield f"{name}/{inside.as_posix()}", path
