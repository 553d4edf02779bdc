"""What the processes of a run say on their way (encoding, warnings), in its log.txt, and to whoever follows it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import MENDABLE, describe
from .printable import shown
from .targets import RUNNING


class Shown(logging.Formatter):
    """Lines in which no name sends an escape to the terminal that shows them."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


FORMAT = Shown("%(asctime)s %(message)s", "%H:%M:%S")
_app = logging.getLogger(RUNNING)
_files: list[logging.FileHandler] = []  # of this process; never more than one


def log_to(run_dir: Path) -> None:
    """From now on this process writes the app's messages to ``run_dir``/log.txt, and no other run's."""
    path = (run_dir / "log.txt").absolute()
    if _files and Path(_files[0].baseFilename) == path:
        return
    while _files:
        old = _files.pop()
        _app.removeHandler(old)
        old.close()
    handler = logging.FileHandler(path)
    handler.setFormatter(FORMAT)
    _app.addHandler(handler)
    _app.setLevel(logging.INFO)
    _files.append(handler)


def log_error(log: logging.Logger, what: str, error: Exception) -> None:
    """An error that an answer has come to: one line of what a person can mend, all of any other."""
    log.error("%s: %s", what, describe(error), exc_info=None if isinstance(error, MENDABLE) else error)


@contextmanager
def listening(listen: Callable[[str], None]) -> Iterator[None]:
    """Within, ``listen`` gets every line that this process would write."""
    handler = _Listener(listen)
    handler.setFormatter(FORMAT)
    _app.addHandler(handler)
    try:
        yield
    finally:
        _app.removeHandler(handler)


class _Listener(logging.Handler):
    def __init__(self, listen: Callable[[str], None]) -> None:
        super().__init__()
        self.listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        self.listen(self.format(record))
