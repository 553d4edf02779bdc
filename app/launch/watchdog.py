"""A small process that ends what another one started, once that is gone, killed or not.

Its standard input is a pipe whose other end the starter alone holds; on every system it closes with the starter.
Usage: python -m app.launch.watchdog MARK FOLDER
"""

import shutil
import sys

from .superlink import end_marked


def main(mark: str, folder: str) -> None:
    """Wait for the starter's end; then end every process that carries ``mark``, and remove ``folder``."""
    sys.stdin.read()
    end_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
