"""Links in a site's data: what they lead to must lie in its data-path too, and be a file or folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import FedgeoError
from .eeg.reader_faults import partners


def refuse_links_out(data: Path) -> None:
    """Raises FedgeoError for what below the folder ``data`` leads out of it, by its name there.

    That is a symbolic link, or a BrainVision header that points to another file. Who may write in a site's data could
    else have the site read, and tell of, any file of its machine. The path itself may be a link: it is the site's own
    word. What is no file is refused too: of a named pipe the site would wait for ever.
    """
    root = data.resolve()
    for entry in _entries(root) if root.is_dir() else ():
        path = Path(entry.path)
        name = path.relative_to(root).as_posix()
        if entry.is_symlink() and not _resolved(path, name).is_relative_to(root):
            raise FedgeoError(f"{name}: a link that leads out of data-path: put what it leads to in its place")
        if os.path.exists(path) and not (
            os.path.isfile(path) or os.path.isdir(path)
        ):  # none raises where one may not look
            raise FedgeoError(f"{name}: neither a file nor a folder, but a pipe, socket or device: move it elsewhere")
        for line, word, named in partners(path):
            if not (path.parent / named).resolve().is_relative_to(root):
                raise FedgeoError(
                    f"{name}, line {line}: {word} leads out of data-path: put that file beside the header"
                )


def _resolved(link: Path, name: str) -> Path:
    try:
        return link.resolve()
    except RuntimeError:
        raise FedgeoError(f"{name}: a link that leads to itself: put what it should lead to in its place") from None


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All that is in and below ``folder``, as far as it can be read; links are not followed."""
    try:
        found = list(os.scandir(folder))
    except OSError:  # whoever reads the data says so in better words
        return
    for entry in found:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))
