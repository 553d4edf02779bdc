"""A source of EEG from outside the tree, and what a site says to one."""

from pathlib import Path

import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, check_run
from app.data.eeg.dataset import eeg_dataset
from app.data.eeg.sources import registry
from app.data.eeg.sources.base import EegSource

SOURCE = """
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from app.data.eeg.sources.base import EegSource
from app.data.eeg.trials import Trials


@dataclass(frozen=True)
class Noise(EegSource):
    people: Annotated[int, Field(ge=2)] = 2

    def read(self, data, *, seed, cache):
        rng = np.random.default_rng(seed)
        y = np.arange(20) % 2
        return [
            Trials(f"P{k}", rng.normal(0, 10, (20, 3, 64)).astype("float32"), y, 0 * y, ("rec",), ("C3", "Cz", "C4"),
                   128.0, tuple(data.events))
            for k in range(self.people)
        ]
"""
WORDS = ["experiment=eeg_folder", "data.events={left: 1, right: 2}", "data.kind=noise_source:Noise"]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise_source.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_class_named_on_the_command_line_is_a_source(outside: None) -> None:
    dataset = eeg_dataset(load([*WORDS, "+data.people=4", "federation.clients=2"]))
    assert dataset.domains == ("P0", "P1", "P2", "P3") and dataset.classes == ("left", "right")
    assert dataset.train(0).x.shape[1:] == (3, 3) and np.isfinite(dataset.train(0).x).all()


def test_its_settings_are_checked_and_nobody_elses_are_taken(outside: None) -> None:
    with pytest.raises(FedgeoError, match=r"data.people=1: must be greater than or equal to 2"):
        eeg_dataset(load([*WORDS, "+data.people=1"]))
    with pytest.raises(FedgeoError, match=r"data.humans: Noise has no such parameter; it has people"):
        eeg_dataset(load([*WORDS, "+data.humans=3"]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("telepathy", "data.kind=telepathy: must be one of those in conf/data"),
        ("base", "data.kind=base: must be one of those"),
        ("no_such_module:Noise", "data.kind=no_such_module:Noise: must be 'module:Class'"),
        ("pathlib:Path", "data.kind=pathlib:Path: must be a subclass of"),
    ],
)
def test_what_is_no_source_is_refused_by_the_key(kind: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        registry.find(kind)


def test_those_of_the_tree_are_found_by_name() -> None:
    for kind in ("eeg_folder", "eeg_bids", "moabb", "simulated"):
        found = registry.find(kind)
        assert issubclass(found, EegSource) and found.name == kind


def test_a_site_reads_its_own_recordings_alone(outside: None) -> None:
    with pytest.raises(Refusal, match=r"data.kind=noise_source:Noise: a site reads its own recordings"):
        check_run(load(["engine=deployment", *WORDS]))
