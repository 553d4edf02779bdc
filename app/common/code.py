"""The package's own files: where they lie, and the hash by which two nodes know that they run the same code."""

import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
# in a clone conf/ stands beside app/, in an installed package it lies within
CONF = next(folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir())


@functools.cache
def code_hash() -> str:
    """sha256 of the package's code and configuration: the same in a clone, in a bundle of Flower's and in a wheel."""
    code = {f"app/{path.relative_to(PACKAGE).as_posix()}": path for path in PACKAGE.rglob("*.py")}
    settings = {f"conf/{path.relative_to(CONF).as_posix()}": path for path in CONF.rglob("*.yaml")}
    digest = hashlib.sha256()
    for name, path in sorted((code | settings).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
