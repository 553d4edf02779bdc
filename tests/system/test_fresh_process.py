"""What only a fresh process shows: its memory, and what it has imported."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import resource
import numpy as np
from app.common.memory import keep_freed_blocks

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


IMPORTS = """
import gc
import app.server.run
from app.common.memory import spare_imports

spare_imports()
first, later = gc.get_freeze_count(), [[] for _ in range(100)]
spare_imports()
print(first, gc.get_freeze_count(), sum(later is each for each in gc.get_objects()))
"""


def test_what_was_imported_is_left_alone_and_what_comes_later_is_not() -> None:
    told = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    first, second, watched = map(int, told.split())
    assert first == second > 100_000
    assert watched == 1


def test_pyplot_is_not_loaded() -> None:
    code = "import sys, app.reports.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
