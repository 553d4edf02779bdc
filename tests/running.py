"""Running an experiment in process, for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import client_app
from app.config.compose import load
from app.grids.in_process import InProcessGrid
from app.reports import figures
from app.server.run import OnRound, run

TIMES = ("seconds",)


def run_in_process(run_dir: Path, *overrides: str, nodes: int = 1, on_round: OnRound | None = None) -> dict[str, Any]:
    """The summary of one run with ``overrides`` over ``nodes`` in-process nodes."""
    words = " ".join([*overrides, f"run_dir={run_dir}"])
    grid = InProcessGrid(client_app.app, {"experiment": "quickstart", "overrides": words}, nodes=nodes)
    return run(grid, load(words), run_dir, on_round, overrides=words, state=run_dir / "state")


def rounds(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl without what a clock says."""
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


_OF_RUNS = ("curves", "label_distribution", "confusion", "domain_bars", "similarity_heatmap")
_OF_SWEEPS = ("curves_compare", "differences", "against_bytes")
_DRAWN = {name: getattr(figures, name) for name in (*_OF_RUNS, *_OF_SWEEPS)}


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """No figures: a test that asks nothing of them need not wait for them."""
    for name in _DRAWN:
        patch.setattr(figures, name, lambda *_: None)


@contextmanager
def drawing() -> Iterator[None]:
    """Figures as users see them, where ``draw_nothing`` holds for all tests of a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, draw in _DRAWN.items():
            patch.setattr(figures, name, draw)
        yield
