"""Methods with state of their own, through Flower's simulation."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.running import rounds, run_in_process


@pytest.mark.slow
def test_flower_s_engine_gives_the_same(tmp_path: Path) -> None:
    """What clients keep, what they share and what they leave out, through Flower's simulation and in process."""
    options = ("augmentation=fedmix", "steps=equal", "federation.rounds=4", "federation.participation=0.5")
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "scripts" / "run.py"), "-m", *options),
            *("method=scaffold,local,centralised", f"sweep_dir={tmp_path / 'sweep'}"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for method in ("scaffold", "local", "centralised"):
        run_in_process(tmp_path / method, *options, f"method={method}")
        assert rounds(tmp_path / "sweep" / f"method={method}") == rounds(tmp_path / method)
