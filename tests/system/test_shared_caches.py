"""Caches that processes share: compiled code and processed trials, whole entries whoever comes first."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.processes import WAIT

# --- compiled code ---

KEPT = Path(".cache") / "fedgeo" / "compiled"
SCRIPT = """
import numpy as np
from app.training.compiled import Parameter, Step, descend
zeros = lambda *shape: Parameter(*(np.zeros(shape) for _ in range(4)))
step = Step(0.1, 0.0, 0.0, 0.0)
print(*descend(np.ones((2, 3)), np.array([0, 1]), np.arange(2), 2, 1, zeros(2, 3), zeros(2), step))
"""


def run_script(home: Path, root: Path = ROOT, **more: str) -> dict[str, tuple[int, bytes]]:
    """What a new process of this user leaves of compiled code, and when; its steps must be right."""
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(root), **more}
    if not more:
        env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=env, capture_output=True, text=True, check=True)
    count, loss = done.stdout.split()
    assert (int(count), float(loss)) == (1, pytest.approx(np.log(2)))
    return files(home)


def files(home: Path) -> dict[str, tuple[int, bytes]]:
    """The compiled code of this user: name -> when it was written, and what it is."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (home / KEPT).glob("*")}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with compiled code."""
    home = tmp_path_factory.mktemp("compiled")
    assert len(run_script(home)) == 1
    return home


@pytest.fixture
def home(compiled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(compiled, tmp_path / "home"))


def test_it_is_compiled_once_for_all_copies_of_the_source(home: Path, tmp_path: Path) -> None:
    first = files(home)
    shutil.copytree(ROOT / "app", tmp_path / "copy" / "app", ignore=shutil.ignore_patterns("__pycache__"))
    assert run_script(home, tmp_path / "copy") == first
    source = tmp_path / "copy" / "app" / "training" / "compiled.py"
    source.write_text(source.read_text() + "\n")
    assert len(run_script(home, tmp_path / "copy")) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "a lost page"])
def test_damaged_code_is_compiled_again(home: Path, damage: str) -> None:
    ((name, (_, good)),) = files(home).items()
    page = slice(2 * 4096, 3 * 4096)  # of what the code calls: run, it ends the process
    lost = bytearray(good)
    lost[page] = bytes(4096)
    bad = {"cut": good[:5000], "empty": b"", "a lost page": bytes(lost)}[damage]
    (home / KEPT / name).write_bytes(bad)
    mended = run_script(home)
    assert mended.keys() == {name} and mended[name][1] != bad
    assert run_script(home) == mended


def test_where_nothing_can_be_written_it_is_compiled_again(tmp_path: Path) -> None:
    assert not run_script(Path("/proc/nowhere"))
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "fedgeo").touch()
    assert not run_script(tmp_path)


@pytest.mark.parametrize("switch", [{"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_CACHE_DIR": "elsewhere"}])
def test_settings_of_numba_hold(tmp_path: Path, switch: dict[str, str]) -> None:
    switch = {key: str(tmp_path / value) if value == "elsewhere" else value for key, value in switch.items()}
    assert not run_script(tmp_path, **switch)
    assert (tmp_path / "elsewhere").is_dir() == ("NUMBA_CACHE_DIR" in switch)


# --- trials ---


def test_processes_side_by_side_leave_one_whole_entry(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.data.eeg.trial_cache import cached; "
        "from app.data.eeg.simulated import simulated; "
        "make = lambda: simulated(1, channels=8)[0]; folder = Path(sys.argv[1]); "
        "[cached(folder, 'S', {'n': n}, make) for n in range(3)]; "
        "print(float(cached(folder, 'S', {'n': 0}, make).trials.sum()))"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [worker.communicate(timeout=WAIT)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len(set(printed)) == 1 and printed[0]
    entries = list(tmp_path.iterdir())
    assert len(entries) == 3
    assert all({item.name for item in entry.iterdir()} == {"trials.npy", "trials.json"} for entry in entries)
    assert all(json.loads((entry / "trials.json").read_text())["subject"] == "simulated-1" for entry in entries)
