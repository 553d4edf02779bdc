"""Freed memory: a block of tens of MB is filled without page faults where one of its size was freed before."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from app.memory import keep_freed_blocks

kept = keep_freed_blocks()
for _ in range(2):  # the first block comes from the system
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = np.empty(50_000_000, np.uint8)
    block.fill(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del block
print(int(kept), faults)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is Linux's")
def test_a_freed_block_is_used_again_without_page_faults() -> None:
    """A process of its own: the setting lasts."""
    told = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    kept, faults = map(int, told.split())
    if not kept:
        pytest.skip("this C library is not glibc")
    assert faults < 100  # 50 MB are 12,000 pages
