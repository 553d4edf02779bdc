"""A model file may be anybody's: what it says of itself is checked, and it has no file of this machine opened."""

import builtins
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from app.common.errors import FedgeoError
from app.tools.model_description import encoder_settings
from scripts import predict as script

PIXELS = {"name": "pixels", "size": 2, "normalise": "l2", "batch_size": 8}
HONEST: dict[str, Any] = {
    "classes": ["cat", "dog"],
    "model": {"kind": "linear"},
    "method": {"name": "fedavg", "target": "app.algorithms.fedavg:FedAvg"},
    "facts": {"dimension": 4},
    "encoder": PIXELS,
}


def model(folder: Path, **changes: Any) -> Path:
    """A linear model of four pixels whose description differs from an honest one."""
    weights = {"linear.weight": torch.zeros(2, 4), "linear.bias": torch.zeros(2)}
    save_file(weights, folder / "m.safetensors", {"fedgeo": json.dumps(HONEST | changes)})
    return folder / "m.safetensors"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("L", (4, 4), 9).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def test_an_honest_one_is_taken(tmp_path: Path, picture: Path) -> None:
    assert script.main([str(model(tmp_path)), str(picture)]) == 0


ODD: list[dict[str, Any]] = [
    {"classes": "cat"},
    {"classes": []},
    {"classes": ["cat", "cat"]},
    {"classes": [1, 2]},
    {"model": "linear"},
    {"model": {"kind": "../../x"}},
    {"model": {"kind": "linear", "hidden": -1}},
    {"model": {"kind": "linear", "unknown": 1}},
    {"model": {"kind": "linear", "target": "os:system"}},
    {"method": "fedavg"},
    {"method": {"name": "x", "target": "app.one_shot.lda:None"}},
    {"facts": []},
    {"facts": {"dimension": "many"}},
    {"facts": {"dimension": 10**15}},
    {"facts": {"dimension": 4, "bit depth": "many"}},
    {"facts": {"dimension": 4, "bit depth": 11}},
    {"facts": {"channels": ["C3"]}},
    {"facts": {}},
    {"encoder": None},
    {"encoder": "pixels"},
    {"encoder": PIXELS | {"name": "os"}},
    {"encoder": PIXELS | {"normalise": "l3"}},
    {"encoder": PIXELS | {"batch_size": 0}},
    {"encoder": PIXELS | {"size": "x"}},
    {"encoder": PIXELS | {"device": "cpu"}},
    {"encoder": PIXELS | {"unknown": 1}},
]


@pytest.mark.parametrize("changes", ODD, ids=str)
def test_odd_words_end_in_one_line(
    changes: dict[str, Any], tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(model(tmp_path, **changes)), str(picture)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    "encoder",
    [
        {"name": "timm", "model": "resnet18", "checkpoint": "SECRET"},
        {"name": "open_clip", "model": "ViT-B-32", "pretrained": "SECRET"},
        {"name": "open_clip", "model": "ViT-B-32", "pretrained": "openai", "checkpoint": "SECRET"},
    ],
    ids=str,
)
def test_a_path_in_the_description_is_not_opened(
    encoder: dict[str, Any],
    tmp_path: Path,
    picture: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret")
    opened: list[str] = []

    def watched(real: Any) -> Any:
        def call(path: Any, *words: Any, **named: Any) -> Any:
            opened.append(str(path))
            return real(path, *words, **named)

        return call

    for module in (builtins, io, os):
        monkeypatch.setattr(module, "open", watched(module.open))
    told = {key: str(secret) if value == "SECRET" else value for key, value in encoder.items()}
    assert script.main([str(model(tmp_path, encoder=told | {"normalise": "l2", "batch_size": 1})), str(picture)]) == 2
    assert "give yours with --checkpoint FILE" in capsys.readouterr().err
    assert str(secret) not in opened


def test_the_users_own_file_takes_the_place_of_a_named_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").write_text("")  # a file that is called like a tag
    own = Path("own.pt")
    described = {"name": "open_clip", "model": "ViT-B-16", "normalise": "l2", "batch_size": 1}
    for named in ("/a/b.pt", "b.pt", "..\\b", "openai"):
        found = encoder_settings(described | {"pretrained": named}, own)
        assert found == {"model": "ViT-B-16", "pretrained": None, "checkpoint": own}
        with pytest.raises(FedgeoError, match="--checkpoint FILE"):
            encoder_settings(described | {"pretrained": named}, None)
    (tmp_path / "openai").unlink()
    assert encoder_settings(described | {"pretrained": "openai"}, None) == {"model": "ViT-B-16", "pretrained": "openai"}


def test_embeddings_are_read_by_the_dimension_that_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 5), np.float32))
    assert script.main([str(model(tmp_path)), str(tmp_path / "x.npy")]) == 2
    assert "embeddings of dimension 5, m.safetensors reads 4" in capsys.readouterr().err
