"""The header of numpy's own format, as it stands before an array's data in files and messages."""

from typing import IO

import numpy as np


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type of the array that comes next in ``file``. ValueError for another."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)
