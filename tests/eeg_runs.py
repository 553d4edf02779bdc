"""Small runs of EEG: on simulated trials, and on folders of recordings."""

from pathlib import Path
from typing import Any

from tests.running import run_in_process

SIMULATED = ("experiment=eeg_demo", "data.subjects=6", "data.trials_per_class=10", "federation.rounds=3")
EEGNET = ("method=fedavg", "model=eegnet")
EVENTS = "data.events={left_hand: T1, right_hand: T2}"


def simulated(folder: Path, *overrides: str, nodes: int = 1) -> dict[str, Any]:
    return run_in_process(folder, *SIMULATED, *overrides, nodes=nodes)


def recorded(folder: Path) -> list[str]:
    """A run on recordings of four channels."""
    words = ["experiment=eeg_folder", f"data.path={folder}", EVENTS, "model.hidden=[2]", "federation.rounds=1"]
    return [*words, f"cache_dir={folder.parent / 'cache'}"]
