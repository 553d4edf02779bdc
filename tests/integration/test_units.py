"""A run tells where scale=lambda does not suit the unit of the embeddings, and goes on telling when it is resumed."""

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.config.compose import load
from app.grids.cohort import Traffic
from app.runs.checkpoint import Checkpoint
from app.runs.run_directory import RunDirectory
from app.server.round_lines import DrawnWarnings
from tests.running import run_in_process

RUN = ("federation.rounds=1", "training.epochs=1", "augmentation.scale=lambda", "augmentation.explained=1.0")
PACS = ("experiment=pacs", "data=features", "model.init=zeros", "augmentation.target=5", "augmentation.per_prototype=2")


@pytest.fixture
def embeddings(tmp_path: Path) -> Path:
    """Two classes in two domains, of norm 30."""
    rng = np.random.default_rng(0)
    arrays = {}
    for domain in ("a", "b"):
        y = np.arange(40) % 2
        x = 3 * rng.normal(size=(40, 8)) + 30 * np.eye(2, 8)[y]
        arrays |= {f"{domain}_X": x.astype(np.float32), f"{domain}_y": y}
    np.savez(tmp_path / "made.npz", **arrays)
    return tmp_path / "made.npz"


@pytest.mark.parametrize(("unit", "said"), [("none", "the samples drown"), ("l2", "")])
def test_a_perturbation_above_the_norm_is_told(embeddings: Path, tmp_path: Path, unit: str, said: str) -> None:
    words = [*PACS, *RUN, f"data.path={embeddings}", f"encoder.normalise={unit}"]
    summary = run_in_process(tmp_path / "run", *words)
    found = [text for text in summary["warnings"] if text.startswith("augmentation.scale=lambda")]
    assert len(found) == bool(said)
    assert all(said in text for text in found)
    assert (said in (tmp_path / "run" / "log.txt").read_text()) or not said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"] == summary["warnings"]


def test_a_resumed_run_goes_on_telling(tmp_path: Path) -> None:
    with (
        closing(RunDirectory(tmp_path / "first", load())) as before,
        closing(RunDirectory(tmp_path / "second", load())) as after,
    ):
        before.warn("of the data")
        first = DrawnWarnings(before, SimpleNamespace(warnings=("of what was drawn",)))  # type: ignore[arg-type]
        first.on_start({}, Traffic())
        assert before.data_warnings == ["of the data", "of what was drawn"]
        after.warn("of the data")
        second = DrawnWarnings(after, SimpleNamespace(warnings=()))  # type: ignore[arg-type]
        second.restore(Checkpoint(1, {}, first.state()[1]))
        second.on_start({}, Traffic())
        assert after.data_warnings == before.data_warnings
