"""What every command has: its words, its answer and its exit code. Nothing here takes long to import."""

import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console

from ..common.errors import FedgeoError
from ..common.files import write_atomic
from ..common.printable import shown


def positive(text: str) -> int:
    """A whole number of at least 1, as a type for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


def say(text: str) -> None:
    """One plain line, never wrapped: paths stay whole for copying."""
    Console(stderr=text.startswith(("error", "interrupted"))).print(
        shown(text), soft_wrap=True, markup=False, highlight=False
    )


def deliver(content: str, out: Path | None, what: str) -> bool:
    """Print ``content``, or write it to the file ``out`` and say where ``what`` is.

    Returns False where whoever reads the output (head, a pager) has seen enough. Raises OSError for a file that cannot
    be written.
    """
    try:
        if out is None:
            print(content, end="", flush=True)
        else:
            write_atomic(out, content.encode())
            say(f"{what}: {out}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing is flushed into it at the end
        return False
    return True


def end_as_by_ctrl_c(*signals: signal.Signals) -> None:
    """End by these signals as by Ctrl-C, so that everything that was started is ended too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, interrupt)


def exit_code(prepare: Callable[[], Callable[[], int]], interrupted: str) -> int:
    """The exit code of a script that runs something, which ends by a signal as by Ctrl-C.

    prepare: checks everything and returns the call that begins, which returns 0, or 1 where a run failed. 2 where
    ``prepare`` refuses, so that nothing was started; 130 after an interruption, when ``interrupted`` tells what became
    of everything.
    """
    end_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    refused = 2
    try:
        begin = prepare()
        refused = 1
        return begin()
    except (FedgeoError, OSError) as error:  # OSError: a folder that cannot be read or written, a full disk
        say(f"error: {error}")
        return refused
    except KeyboardInterrupt:
        say(f"interrupted: {interrupted}")
        return 130
