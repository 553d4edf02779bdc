"""16-bit files of cameras of 10, 12 and 14 bits: one factor for the whole set, or a refusal."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.bit_depth import with_bit_depth
from app.data.images.dataset import ImageDataset, image_dataset
from app.data.images.decoding import open_image
from app.data.images.folders import FileImages, domain_folder, image_folder
from app.strategies.handshake import _of_some, compare


def folder(root: Path, bits: int, *, suffix: str = "png", n: int = 6) -> Path:
    """Two classes of grey pictures whose values use ``bits``, the darkest a quarter as bright as the brightest."""
    for label, turn in (("a", 1), ("b", -1)):
        (root / label).mkdir(parents=True)
        for k in range(n):
            values = np.linspace(0, (2**bits - 1) * (k + 2) / (n + 1), 64).astype(np.uint16).reshape(8, 8)
            Image.fromarray(values[:, ::turn].copy()).save(root / label / f"{k}.{suffix}")
    return root


def dataset(root: Path, cache: Path, *words: str) -> ImageDataset:
    fixed = ["experiment=image_folder", "augmentation=none", "encoder=pixels", "federation.clients=1"]
    return image_dataset(load([*fixed, f"data.path={root}", f"cache_dir={cache}", *words]))


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_set_looks_the_same_whatever_its_camera_has_written(tmp_path: Path, bits: int, suffix: str) -> None:
    source, found = with_bit_depth(image_folder(folder(tmp_path / "set", bits, suffix=suffix)), None, None)
    assert found == bits and source.images is not None
    tops = [np.asarray(source.images[k]).max() for k in range(6)]
    assert np.allclose(tops, [255 * (k + 2) / 7 for k in range(6)], atol=1)


def test_embeddings_of_12_bits_are_those_of_8_and_are_kept_apart_from_those_of_16(tmp_path: Path) -> None:
    deep = dataset(folder(tmp_path / "deep", 12), tmp_path / "cache")
    plain = dataset(folder(tmp_path / "plain", 8), tmp_path / "cache")
    assert np.abs(deep.train(0).x - plain.train(0).x).max() < 0.02
    assert deep.facts(0)["bit depth"] == 12 and "12-bit" in deep.warnings[0]
    chosen = dataset(tmp_path / "deep", tmp_path / "cache", "data.bit_depth=16", "encoder.normalise=none")
    found = dataset(tmp_path / "deep", tmp_path / "cache", "encoder.normalise=none")
    assert np.allclose(chosen.train(0).x * 16, found.train(0).x, atol=0.1)
    assert not np.allclose(chosen.train(0).x, found.train(0).x, atol=0.1) and chosen.warnings == ()


def test_one_bright_mark_does_not_decide(tmp_path: Path) -> None:
    root = folder(tmp_path / "set", 12)
    Image.fromarray(np.full((8, 8), 65535, np.uint16)).save(root / "a" / "mark.png")
    with pytest.raises(FedgeoError, match=r"set: the greatest value .* 65535, half .* data.bit_depth .*\(12 or 16\)"):
        with_bit_depth(image_folder(root), None, None)
    with pytest.raises(FedgeoError, match=r"mark.png: its greatest value is 65535, data.bit_depth=12 allows 4095"):
        with_bit_depth(image_folder(root), 12, None)
    assert with_bit_depth(image_folder(root), 16, None)[1] == 16


def test_domains_of_two_depths_are_refused_by_name(tmp_path: Path) -> None:
    for name, bits in (("old", 12), ("new", 16)):
        folder(tmp_path / "set" / name, bits)
    with pytest.raises(FedgeoError, match=r"domain old use 12 bits, of domain new 16"):
        with_bit_depth(domain_folder(tmp_path / "set"), None, None)


def test_images_of_8_bits_tell_no_depth(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for k in range(3):
            Image.new("L", (4, 4), 40 * k).save(tmp_path / "set" / label / f"{k}.png")
    assert with_bit_depth(image_folder(tmp_path / "set"), None, None)[1] is None
    assert "bit depth" not in dataset(tmp_path / "set", tmp_path / "cache").facts(0)


def colour(root: Path, value: int) -> Path:
    """A PNG of 16 bits a channel in colour, which Pillow reads but does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + np.full((4, 3), value, ">u2").tobytes()) * 4
    head = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    path = root / f"{value}.png"
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def test_colour_of_12_bits_is_refused_and_of_16_read(tmp_path: Path) -> None:
    """Of 16 bits a channel in colour the upper byte alone is read, which of 12-bit values is nearly nothing."""
    assert FileImages((colour(tmp_path, 4095), colour(tmp_path, 40_000))).greatest(0) == 4095
    assert open_image(tmp_path / "40000.png", "x").getpixel((0, 0)) == (40_000 // 256,) * 3
    with pytest.raises(FedgeoError, match=r"4095.png: .*colour, 12 of them used.*convert it to 8 bits"):
        open_image(tmp_path / "4095.png", "4095.png", 12)


def test_a_tiff_whose_white_is_zero_is_turned(tmp_path: Path) -> None:
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    values = np.array([[0, 65535]], np.uint16)
    tags[262] = 0
    Image.fromarray(values).save(tmp_path / "x.tif", tiffinfo=tags)
    with Image.open(tmp_path / "x.tif") as written:
        assert written.tag_v2[262] == 0
    assert np.asarray(open_image(tmp_path / "x.tif", "x")).tolist() == [[255, 0]]


def test_a_new_image_beyond_the_models_depth_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 5000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(FedgeoError, match=r"greatest value is 5000, data.bit_depth=12 allows 4095"):
        open_image(tmp_path / "x.png", "x.png", 12)


def test_sites_without_16_bits_agree_with_any_and_others_among_themselves() -> None:
    compare({"bit depth": 12}, "site b", {}, "site a")
    assert _of_some({"site a": {}, "site b": {"bit depth": 12}, "site c": {"bit depth": 12}}) == {"bit depth": 12}
    with pytest.raises(FedgeoError, match=r"site c has bit depth 10, site b has 12: set data.bit_depth"):
        _of_some({"site a": {}, "site b": {"bit depth": 12}, "site c": {"bit depth": 10}})
