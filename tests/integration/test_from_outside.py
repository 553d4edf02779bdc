"""An augmentation and a model from outside the tree, each in one file, named on the command line.

Files that an addition takes: one, the class. Inside the tree two, the class (app/augmentation/<kind>.py,
app/models/<kind>.py) and a yaml of the same name in conf/augmentation or conf/model, so that it can be chosen by it.
"""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, check_run
from app.tools.predict import load_model
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


MODEL = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from app.config.schema import Positive
from app.models.base import Architecture, Model, Output


class Bottleneck(Model):
    def __init__(self, dimension, classes, width):
        super().__init__()
        self.narrow = nn.Linear(dimension, width, bias=False)
        self.wide = nn.Linear(width, classes)

    def forward(self, x):
        representation = self.narrow(x)
        return Output(representation, self.wide(representation))

    @torch.no_grad()
    def reset(self, generator):
        for weight in (self.narrow.weight, self.wide.weight):
            weight.uniform_(-0.1, 0.1, generator=generator)
        nn.init.zeros_(self.wide.bias)

    def blank_input(self):
        return torch.zeros(1, self.narrow.in_features)


@dataclass(frozen=True)
class BottleneckArchitecture(Architecture):
    name: ClassVar[str] = "bottleneck"
    model: ClassVar[type[Model]] = Bottleneck
    width: Positive = 4

    def build(self, inputs, classes, *, stiefel=True):
        return Bottleneck(inputs["dimension"], classes, self.width)
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


def test_a_model_from_outside(outside: Path, tmp_path: Path) -> None:
    (outside / "outside_model.py").write_text(MODEL)
    target = ("model.target=outside_model:BottleneckArchitecture", "augmentation=none")
    summary = run_in_process(tmp_path / "run", *SHORT, *target, "+model.width=3")
    weights = load_file(tmp_path / "run" / "model-final.safetensors")
    assert summary["status"] == "completed"
    assert {name: value.shape for name, value in weights.items()} == {
        "narrow.weight": (3, 64),
        "wide.weight": (10, 3),
        "wide.bias": (10,),
    }
    with pytest.raises(FedgeoError, match=r"^model\.width=0: must be greater than or equal to 1$"):
        run_in_process(tmp_path / "wrong", *SHORT, *target, "+model.width=0")
    with pytest.raises(FedgeoError, match="outside_model:BottleneckArchitecture: only models of this package"):
        load_model(tmp_path / "run" / "model-final.safetensors")


def test_a_hidden_layer_is_the_mlp_by_another_name(tmp_path: Path) -> None:
    plain = (*SHORT, "augmentation=none")
    run_in_process(tmp_path / "hidden", *plain, "model.hidden=8")
    run_in_process(tmp_path / "mlp", *plain, "model=mlp", "model.hidden=8")
    run_in_process(tmp_path / "dropout", *plain, "model=mlp", "model.hidden=8", "model.dropout=0.5")
    assert rounds(tmp_path / "hidden") == rounds(tmp_path / "mlp") != rounds(tmp_path / "dropout")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("other", "augmentation.kind=other: must be one of those in conf/augmentation"),
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
    run = load((*SHORT, "engine=deployment", "model.target=outside_model:BottleneckArchitecture"))
    with pytest.raises(Refusal, match="model.target=outside_model:BottleneckArchitecture: a site runs models"):
        check_run(run)
    check_run(load((*SHORT, "engine=deployment", "augmentation.kind=app.augmentation.ggeur:GGEURAugmentation")))
