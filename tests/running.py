"""Running an experiment in process, for tests."""

import json
from pathlib import Path
from typing import Any

import pytest

import client_app
from app.config.compose import load
from app.grids.in_process import InProcessGrid
from app.reports import figures
from app.server.run import run

TIMES = ("seconds",)


def run_in_process(run_dir: Path, *overrides: str, nodes: int = 1) -> dict[str, Any]:
    """The summary of one run with ``overrides`` over ``nodes`` in-process nodes."""
    words = " ".join([*overrides, f"run_dir={run_dir}"])
    grid = InProcessGrid(client_app.app, {"experiment": "quickstart", "overrides": words}, nodes=nodes)
    return run(grid, load(words), run_dir, overrides=words, state=run_dir / "state")


def rounds(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl without what a clock says."""
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """No figures: a test that asks nothing of them need not wait for them."""
    for drawn in ("curves", "label_distribution", "confusion", "domain_bars", "similarity_heatmap"):
        patch.setattr(figures, drawn, lambda *_: None)
