"""An augmentation and a model from outside the tree, each in one file, named on the command line.

Files that an addition takes: one, the class. Inside the tree two, the class (app/augmentation/<kind>.py,
app/models/<kind>.py) and a yaml of the same name in conf/augmentation or conf/model, so that it can be chosen by it.
"""

import json
from pathlib import Path

import pytest

from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, check_run
from tests.running import rounds, run_in_process

SHORT = ("experiment=quickstart", "federation.rounds=2")

AUGMENTATION = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.base import Augmentation


@dataclass(frozen=True, eq=False)
class Mean:
    mean: np.ndarray

    def to_arrays(self, dtype="float32"):
        return {"mean": self.mean.astype(dtype)}


@dataclass(frozen=True)
class TowardsMean(Augmentation):
    '''Every sample once more, moved a share of the way to the mean of all clients.'''

    name: ClassVar[str] = "towards_mean"
    share: Annotated[float, Field(ge=0, le=1)] = 0.5

    def client_statistics(self, x, y, client):
        return Mean(x.mean(axis=0)).to_arrays()

    def read_statistics(self, arrays, classes, origin):
        return Mean(arrays["mean"])

    def check_statistics(self, found, sender):
        assert found.mean.shape == (sender.dimension,)

    def merge(self, parts, clients):
        return Mean(np.mean([part.mean for part in parts.values()], axis=0))

    def read_shared(self, arrays, receiver):
        return Mean(arrays["mean"])

    def training_set(self, x, y, shared, *, classes, seed, client, own=None):
        moved = x + np.float32(self.share) * (shared.mean - x)
        both = np.concatenate([x, moved]), np.concatenate([y, y])
        return AugmentedSet(*both, classes=classes, seed=seed, client=client)
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody else's, from which modules can be imported."""
    folder = tmp_path / "outside"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_an_augmentation_from_outside(outside: Path, tmp_path: Path) -> None:
    (outside / "outside_augmentation.py").write_text(AUGMENTATION)
    kind = "augmentation.kind=outside_augmentation:TowardsMean"
    summary = run_in_process(tmp_path / "half", *SHORT, kind)
    told = json.loads((tmp_path / "half" / "augmentation.json").read_text())
    held = sum(sum(client["held"]) for client in told["clients"])
    assert summary["status"] == "completed" and summary["augmentation"] == "outside_augmentation:TowardsMean"
    assert summary["added_samples"] == held > 0
    run_in_process(tmp_path / "all", *SHORT, kind, "+augmentation.share=1.0")
    assert rounds(tmp_path / "half") != rounds(tmp_path / "all")
    with pytest.raises(FedgeoError, match=r"^augmentation\.share=2\.0: must be less than or equal to 1$"):
        run_in_process(tmp_path / "wrong", *SHORT, kind, "+augmentation.share=2.0")
    with pytest.raises(FedgeoError, match=r"^augmentation\.shape: TowardsMean has no such parameter; it has share$"):
        run_in_process(tmp_path / "unknown", *SHORT, kind, "+augmentation.shape=1.0")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("other", "augmentation.kind=other: must be one of conf/augmentation, or 'module:Class'"),
        ("app.algorithms.moon:Moon", "augmentation.kind=app.algorithms.moon:Moon: must be a subclass of app.augment"),
    ],
)
def test_what_is_no_augmentation_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(FedgeoError) as caught:
        run_in_process(tmp_path / "run", *SHORT, f"augmentation.kind={kind}")
    assert str(caught.value).startswith(message)


def test_a_site_loads_no_class_from_outside() -> None:
    run = load((*SHORT, "engine=deployment", "augmentation.kind=outside_augmentation:TowardsMean"))
    with pytest.raises(Refusal, match="augmentation.kind=outside_augmentation:TowardsMean: a site runs"):
        check_run(run)
    check_run(load((*SHORT, "engine=deployment", "augmentation.kind=app.augmentation.ggeur:GGEURAugmentation")))
