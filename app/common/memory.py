"""What a long computation asks of the process's memory: freed blocks stay, and imports are not looked through."""

import ctypes
import functools
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGE = 2**30  # bytes; larger blocks are the system's as ever


@functools.cache
def keep_freed_blocks() -> bool:
    """Have glibc serve blocks below 1 GiB from memory that it keeps; returns whether it does so.

    By default a block of some MB goes back to the system when it is freed, and the next one is filled page fault by
    page fault. An encoder's activations and a chunk's augmented sets come and go at every step: encoding a batch of 32
    images took three times the processor time. The peak is what it was; other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, _LARGE) and libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1))


@functools.cache
def spare_imports() -> None:
    """Have the garbage collector leave alone all that there is at the first call, once everything is imported.

    The libraries are a million objects that live as long as the process. Looking through them takes a third of a
    second, which would fall into a round every now and then.
    """
    gc.freeze()
