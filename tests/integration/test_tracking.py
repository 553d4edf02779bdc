"""TensorBoard beside the run directory's own files."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.common.errors import FedgeoError
from app.config.compose import load
from app.runs import tracking
from tests.made_runs import make_run
from tests.running import drawing


def test_rounds_figures_and_settings_are_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with drawing():
        folder = make_run(tmp_path / "run", "tracking=tensorboard", scores=(0.4, 0.6, 0.7), domains=("north", "south"))
    events = EventAccumulator(str(folder / tracking.FOLDER)).Reload()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    told = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert told == [(line["round"], pytest.approx(line["accuracy"])) for line in lines]
    assert [event.value for event in events.Scalars("accuracy_by_domain/south")] == pytest.approx([0.38, 0.58, 0.68])
    image = events.Images("curves")[0]
    with Image.open(io.BytesIO(image.encoded_image_string)) as logged, Image.open(folder / "figures/curves.png") as own:
        assert np.array_equal(np.asarray(logged.convert("RGB")), np.asarray(own.convert("RGB")))
    text = events.Tensors("config.yaml/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "tracking: tensorboard" in text


def test_without_it_nothing_is_written(tmp_path: Path) -> None:
    assert not (make_run(tmp_path / "run") / tracking.FOLDER).exists()


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FedgeoError, match="tracking=tensorboard: tensorboard is not installed"):
        tracking.check(load(("tracking=tensorboard",)))
