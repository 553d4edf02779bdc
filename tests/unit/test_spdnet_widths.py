"""Widths of SPDnet that fit any montage."""

import pytest

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.eeg.dataset import eeg_dataset
from app.models import registry
from app.models.spdnet import SPDNetArchitecture
from app.server.remote_dataset import RemoteDataset

PRESET = ["experiment=eeg_folder", "data.events={left: T1, right: T2}"]


def width(channels: int, *, average: bool) -> tuple[int, ...]:
    """Of the preset's one block, as the server of a deployment builds it."""
    facts = {"channels": ["x"] * channels, "samples a trial": 9, "sampling rate": 9.0, "average reference": average}
    dataset = RemoteDataset(("a", "b"), (), (), facts, ())
    model = registry.load(load(PRESET).model).build(dataset.inputs, 2)
    return tuple(model.export()["stiefel.0"].shape)


@pytest.mark.parametrize(
    ("channels", "average", "shape"),
    [(64, False, (64, 32)), (22, False, (22, 22)), (22, True, (22, 21)), (3, False, (3, 3)), (33, True, (33, 32))],
)
def test_the_presets_width_is_at_most_the_rank(channels: int, average: bool, shape: tuple[int, int]) -> None:
    assert width(channels, average=average) == shape


def test_a_simulation_and_a_server_say_the_same_of_the_inputs() -> None:
    dataset = eeg_dataset(load(["experiment=eeg_demo", "data.subjects=2", "data.trials_per_class=10"]))
    facts = dataset.facts(0)
    assert RemoteDataset(dataset.classes, (), (), facts, ()).inputs == dataset.inputs
    assert dataset.inputs["rank"] == 22


def test_a_width_that_does_not_fit_names_the_key_and_what_does() -> None:
    with pytest.raises(FedgeoError, match=r"not above 22 channels: set model.hidden, such as \[22\], or auto"):
        SPDNetArchitecture([32]).build({"channels": 22}, 2)
    with pytest.raises(FedgeoError, match=r"such as \[12, 8\]"):
        SPDNetArchitecture([8, 12]).build({"channels": 22}, 2)
    assert load([*PRESET, "model.hidden=[6]"]).model.settings["hidden"] == [6]
