"""Encoders: dimensions, preprocessing, fingerprints, weights from files, precision."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from app.common.errors import FedgeoError
from app.data.images.published import pacs
from app.data.images.sklearn_digits import sklearn_digits
from app.encoders import network
from app.encoders.base import Encoder
from app.encoders.registry import build

TINY = "fedgeo-tiny"


@pytest.fixture(scope="module", autouse=True)
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A CLIP of three layers that open_clip builds like any other."""
    import open_clip

    vision = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}
    file = tmp_path_factory.mktemp("configs") / f"{TINY}.json"
    file.write_text(json.dumps({"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(file)
    logging.getLogger().setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in ((40, 60, 3), (64, 50, 3))]
    return [*noise, noise[0].convert("L")]


def encode(encoder: Encoder, images: list[Image.Image]) -> np.ndarray:
    return encoder.encode(torch.stack([encoder.preprocess(image) for image in images])).numpy()


# --- pixels


def test_pixels_of_the_digits_are_the_original_values() -> None:
    encoder, source = build("pixels", size=8), sklearn_digits()
    assert source.images is not None
    found = encode(encoder, [source.images[at] for at in range(50)])
    assert found.shape == (50, encoder.dimension) == (50, 64) and found.dtype == np.float32
    expected = load_digits().data[:50]
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(found / np.linalg.norm(found, axis=1, keepdims=True), unit, atol=1e-6)


def test_pixels_average_the_area(pictures: list[Image.Image]) -> None:
    square = pictures[2].crop((0, 0, 40, 40))
    found = encode(build("pixels", size=4), [square])[0]
    means = np.asarray(square, float).reshape(4, 10, 4, 10).mean((1, 3)).ravel() / 255
    assert np.abs(found - means).max() <= 1 / 255  # rounded to whole grey levels, once a direction
    assert build("pixels", size=4).fingerprint != build("pixels", size=8).fingerprint
    with pytest.raises(FedgeoError, match=r"encoder\.size"):
        build("pixels", size=0)


# --- open_clip


def test_open_clip_is_the_library_s_own_encoding(pictures: list[Image.Image]) -> None:
    import open_clip

    encoder = build("open_clip", model=TINY, pretrained=None, precision="float32")
    torch.default_generator.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms(TINY, pretrained=None)
    model.eval()
    with torch.no_grad():
        expected = torch.cat([model.encode_image(preprocess(picture)[None]) for picture in pictures]).numpy()
    found = encode(encoder, pictures)
    assert found.shape == (3, encoder.dimension) == (3, 24)
    assert np.allclose(found, expected, atol=1e-5)


def test_random_weights_are_the_same_everywhere_and_leave_the_generator_alone() -> None:
    state = torch.default_generator.get_state()
    one, other = build("open_clip", model=TINY, pretrained=None), build("open_clip", model=TINY, pretrained=None)
    assert one.fingerprint == other.fingerprint
    assert torch.equal(state, torch.default_generator.get_state())


def checkpoint(file: Path, change: float = 0.0) -> Path:
    import open_clip

    torch.default_generator.manual_seed(0)
    model = open_clip.create_model(TINY, pretrained=None)
    with torch.no_grad():
        model.visual.proj[0, 0] += change
    torch.save(model.state_dict(), file)
    return file


def test_a_local_checkpoint_gives_identical_embeddings(tmp_path: Path, pictures: list[Image.Image]) -> None:
    made = build("open_clip", model=TINY, pretrained=None, precision="float32")
    file = checkpoint(tmp_path / "weights.pt")
    for loaded in (
        build("open_clip", model=TINY, pretrained=str(file), precision="float32"),
        build("open_clip", model=TINY, pretrained=None, checkpoint=file, precision="float32"),
    ):
        assert np.array_equal(encode(loaded, pictures), encode(made, pictures))
        assert loaded.fingerprint == made.fingerprint
    changed = build("open_clip", model=TINY, pretrained=str(checkpoint(tmp_path / "changed.pt", 1e-3)))
    assert changed.fingerprint != made.fingerprint


def test_a_tag_brings_its_activation_and_preprocessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import open_clip

    tag = {"url": "https://example.org/w.pt", "quick_gelu": True, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, TINY, {"theirs": tag})
    file = checkpoint(tmp_path / "weights.pt")
    plain = build("open_clip", model=TINY, pretrained=str(file), precision="float32")
    theirs = build("open_clip", model=TINY, pretrained="theirs", checkpoint=file, precision="float32")
    black = Image.new("RGB", (32, 32))
    assert torch.allclose(theirs.preprocess(black)[:, 0, 0], -torch.tensor([0.2, 0.4, 0.6]))
    assert theirs.fingerprint != plain.fingerprint
    assert "QuickGELU" in str(theirs._module) and "QuickGELU" not in str(plain._module)


def test_open_clip_settings_that_cannot_be_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedgeoError, match="did you mean ViT-B-16"):
        build("open_clip", model="ViT-B16")
    with pytest.raises(FedgeoError, match=r"opneai: neither a file nor a tag of ViT-B-16 .*'openai'"):
        build("open_clip", model="ViT-B-16", pretrained="opneai")
    with pytest.raises(FedgeoError, match=r"no such file: .*away\.pt"):
        build("open_clip", model=TINY, pretrained=None, checkpoint=tmp_path / "away.pt")
    other = tmp_path / "other.pt"
    torch.save({"weight": torch.zeros(2)}, other)
    with pytest.raises(FedgeoError, match=r"other\.pt: not a checkpoint of fedgeo-tiny"):
        build("open_clip", model=TINY, pretrained=str(other))


def test_missing_weights_say_what_to_fetch_and_where_to_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        FedgeoError, match=r"ViT-B-16 openai: .*fetch them from https://\S+ .*encoder\.checkpoint"
    ) as told:
        build("open_clip")
    assert "\n" not in str(told.value)
    with pytest.raises(FedgeoError, match=r"timm test_vit: .*huggingface\.co/timm/test_vit .*encoder\.checkpoint"):
        build("timm", model="test_vit")


def test_without_a_network_one_line_tells_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        logging.error("Failed to download weights")
        raise RuntimeError("unreachable, " + "word " * 60)

    caplog.set_level(logging.INFO, "app")
    monkeypatch.setattr("open_clip.create_model_and_transforms", unreachable)
    monkeypatch.setattr("timm.create_model", unreachable)
    for name, settings in (("open_clip", {}), ("timm", {"model": "test_vit"})):
        with pytest.raises(FedgeoError, match=r"fetched \(unreachable, (word )+\.\.\.\): fetch them from"):
            build(name, **settings)
    logging.error("heard again")
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == ["heard again"]
    assert "timm test_vit: looking for the weights" in caplog.text


# --- timm


def test_timm_is_the_model_without_its_classifier(tmp_path: Path, pictures: list[Image.Image]) -> None:
    import timm

    torch.default_generator.manual_seed(0)
    model = timm.create_model("test_vit").eval()
    torch.save(model.state_dict(), tmp_path / "vit.pt")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    batch = torch.stack([transform(picture.convert("RGB")) for picture in pictures])
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(batch), pre_logits=True).numpy()
    loaded = build("timm", model="test_vit", checkpoint=tmp_path / "vit.pt", precision="float32")
    assert np.allclose(encode(loaded, pictures), expected, atol=1e-5)
    assert build("timm", model="test_vit", pretrained=False).fingerprint == loaded.fingerprint


def test_timm_image_size_and_faults(tmp_path: Path, pictures: list[Image.Image]) -> None:
    small = build("timm", model="test_vit", pretrained=False, image_size=64)
    assert small.preprocess(pictures[0]).shape == (3, 64, 64)
    assert small.fingerprint != build("timm", model="test_vit", pretrained=False).fingerprint
    with pytest.raises(FedgeoError, match=r"timm has no model 'test_vti': did you mean .*test_vit"):
        build("timm", model="test_vti")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(FedgeoError, match=r"other\.pt: not a checkpoint of test_vit"):
        build("timm", model="test_vit", checkpoint=tmp_path / "other.pt")


# --- what all share


def test_settings_that_cannot_be_are_told() -> None:
    with pytest.raises(FedgeoError, match=r"unknown encoder 'clip': choose among \['pixels', 'open_clip'"):
        build("clip")
    with pytest.raises(FedgeoError, match=r"encoder\.precision must be one of"):
        build("timm", model="test_vit", pretrained=False, precision="half")
    with pytest.raises(FedgeoError, match="device must be auto, cpu or cuda"):
        network.choose_device("gpu")


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert network.choose_device("auto").type == network.choose_device("cpu").type == "cpu"
    with pytest.raises(FedgeoError, match="no GPU"):
        network.choose_device("cuda")


class Harsh(torch.nn.Module):
    """Its embedding is a difference of near-equal numbers, which bfloat16 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        flat = batch.flatten(1)[:, :16]
        return (1000 + flat) * self.weight - 1000


def test_auto_takes_bfloat16_only_where_it_is_fast_and_exact(
    pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = build("open_clip", model=TINY, pretrained=None, precision="float32", device="cpu")
    for fast in (True, False):
        monkeypatch.setattr(network, "_fast_bfloat16", lambda fast=fast: fast)
        chosen = build("open_clip", model=TINY, pretrained=None, device="cpu")
        assert chosen.precision == ("bfloat16" if fast else "float32")
        assert chosen.fingerprint == exact.fingerprint
        one, other = (encode(encoder, pictures) for encoder in (exact, chosen))
        cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        assert cosine.min() > 0.9995 and other.dtype == np.float32
    monkeypatch.setattr(network, "_fast_bfloat16", lambda: True)
    resize, wishes = exact.preprocess, ("auto", "bfloat16")
    made = {wish: network.Network("harsh", Harsh(), resize, {}, device="cpu", precision=wish) for wish in wishes}
    assert {wish: network.precision for wish, network in made.items()} == {"auto": "float32", "bfloat16": "bfloat16"}


def test_a_network_must_give_vectors() -> None:
    def transform(picture: Image.Image) -> torch.Tensor:
        return torch.zeros(3, 8, 8)

    with pytest.raises(FedgeoError, match="encoder conv: gives"):
        network.Network("conv", torch.nn.Conv2d(3, 2, 3), transform, {}, device="cpu", precision="float32")


# --- a real pretrained encoder


def test_efficientnet_lite0_agrees_with_embeddings_made_elsewhere(test_data: Path) -> None:
    """Pictures of the test folder lie among the stored embeddings of the whole set (other code, other machine)."""
    pytest.importorskip("efficientnet_lite_pytorch")
    encoder = build("efficientnet_lite0", precision="float32")
    source = pacs(test_data / "images" / "pacs")
    assert source.images is not None and encoder.dimension == 1280
    at = np.flatnonzero((source.domain == source.domains.index("photo")) & (source.labels == 0))[:6]
    found = encode(encoder, [source.images[index] for index in at])
    stored = np.load(test_data / "features" / "pacs_efflite0.npz")["photo_X"].astype(np.float32)
    cosine = (found / np.linalg.norm(found, axis=1, keepdims=True)) @ (
        stored / np.linalg.norm(stored, axis=1, keepdims=True)
    ).T
    assert cosine.max(axis=1).min() > 0.995
    assert np.sort(cosine, axis=1)[:, -2].max() < 0.95
