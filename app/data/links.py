"""Links in a site's data: what they lead to must lie in its data-path too."""

import os
from pathlib import Path

from ..common.errors import FedgeoError


def refuse_links_out(data: Path) -> None:
    """Raises FedgeoError for a symbolic link below the folder ``data`` that leads out of it, by its name there.

    Who may write in a site's data could else have the site read, and tell of, any file of its machine. The path itself
    may be a link: it is the site's own word.
    """
    root = data.resolve()
    waiting = [root] if root.is_dir() else []
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    if not Path(entry.path).resolve().is_relative_to(root):
                        name = Path(entry.path).relative_to(root).as_posix()
                        raise FedgeoError(
                            f"{name}: a link that leads out of data-path: put what it leads to in its place"
                        )
                elif entry.is_dir():
                    waiting.append(Path(entry.path))
