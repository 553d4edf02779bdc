"""Image files of every kind, and folders of them."""

import io
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from app.common.errors import FedgeoError
from app.data.images.decoding import open_image
from app.data.images.folders import (
    ArrayImages,
    ConcatImages,
    FileImages,
    domain_folder,
    image_folder,
)
from app.data.images.sklearn_digits import sklearn_digits
from app.data.source import TEST, TRAIN, UNSET, VAL
from tests.pictures import RED, WHITE, tree, write

# --- every kind of image becomes plain grey or RGB


def test_grey_and_rgb_are_kept_as_they_are(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    grey = open_image(tmp_path / "grey.png", "grey")
    assert grey.mode == "L" and np.array_equal(np.asarray(grey), pixels)
    colour = open_image(write(tmp_path / "red.png"), "red")
    assert colour.mode == "RGB" and colour.getpixel((0, 0)) == RED


def test_sixteen_bits_are_scaled_by_their_full_range(tmp_path: Path) -> None:
    values = np.array([[0, 257, 385, 386, 65535]], np.uint16)
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(values).save(tmp_path / name)
        image = open_image(tmp_path / name, name)
        assert image.mode == "L" and np.asarray(image).tolist() == [[0, 1, 1, 2, 255]]


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    clear, half = Image.new("RGBA", (2, 2), (255, 0, 0, 0)), Image.new("RGBA", (2, 2), (255, 0, 0, 128))
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    clear.save(tmp_path / "clear.png")
    half.save(tmp_path / "half.png")
    palette.save(tmp_path / "palette.png", transparency=0)
    palette.save(tmp_path / "opaque.png")
    Image.new("LA", (2, 2), (0, 0)).save(tmp_path / "la.png")
    pixel = {file.stem: open_image(file, "x").convert("RGB").getpixel((0, 0)) for file in tmp_path.iterdir()}
    assert pixel["clear"] == pixel["palette"] == pixel["la"] == WHITE
    assert pixel["half"] == (255, 127, 127)
    assert pixel["opaque"] == RED


def test_a_stack_of_images_is_refused_a_preview_beside_one_is_not(tmp_path: Path) -> None:
    image, slices = Image.new("L", (6, 4), 90), [Image.new("L", (6, 4), 10 * k) for k in range(3)]
    image.save(tmp_path / "stack.tif", save_all=True, append_images=slices)
    with pytest.raises(FedgeoError, match=r"stack\.tif: not a readable image \(a stack of 4 images: save the one"):
        open_image(tmp_path / "stack.tif", "stack.tif")
    image.save(tmp_path / "preview.tif", save_all=True, append_images=[Image.new("L", (3, 2), 0)])
    assert np.asarray(open_image(tmp_path / "preview.tif", "preview.tif")).tolist() == [[90] * 6] * 4


def test_cmyk_and_animations_and_orientation(tmp_path: Path) -> None:
    Image.new("CMYK", (2, 2), (0, 255, 255, 0)).save(tmp_path / "ink.tif")
    assert open_image(tmp_path / "ink.tif", "ink").getpixel((0, 0)) == RED

    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert open_image(tmp_path / "film.gif", "film").getpixel((0, 0)) == RED

    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.new("RGB", (4, 2)).save(tmp_path / "side.jpg", exif=exif)
    assert open_image(tmp_path / "side.jpg", "side").size == (2, 4)


@pytest.mark.parametrize("name", ["torn.jpg", "text.png", "empty.png", "gone.png", "float.tif", "long.tif", "flip.png"])
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "PNG" if name == "flip.png" else "JPEG")
    content = whole.getvalue()
    file = tmp_path / name
    if name == "float.tif":
        Image.fromarray(np.ones((2, 2), np.float32)).save(file)
    elif name == "long.tif":
        Image.fromarray(np.full((2, 2), 70000, np.int32)).save(file)
    elif name != "gone.png":
        made = {"torn.jpg": content[:-200], "text.png": b"hello", "empty.png": b""}
        file.write_bytes(made.get(name, content[:300] + bytes([content[300] ^ 255]) + content[301:]))
    with pytest.raises(FedgeoError, match=name):
        FileImages((file,))[0]


def test_digests_follow_the_content_and_stamps_the_file(tmp_path: Path) -> None:
    one, same, other = (write(tmp_path / f"{at}.png", c) for at, c in enumerate((RED, RED, WHITE)))
    files = FileImages((one, same, other))
    assert files.digest(0) == files.digest(1) != files.digest(2)
    assert files.stamp(0) != files.stamp(1)
    before = files.stamp(0)
    write(one, size=(9, 9))
    assert files.stamp(0) != before
    arrays = ArrayImages(np.stack([np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 3))]).astype(np.uint8), "set")
    assert arrays.digest(0) == arrays.digest(2) != arrays.digest(1)
    assert ArrayImages(np.zeros((1, 3, 2), np.uint8), "turned").digest(0) != arrays.digest(0)


def test_concatenation_finds_every_image(tmp_path: Path) -> None:
    arrays = ArrayImages(np.arange(2, dtype=np.uint8)[:, None, None] + np.zeros((2, 1, 1), np.uint8), "a")
    empty = ArrayImages(np.zeros((0, 1, 1), np.uint8), "none")
    files = FileImages((write(tmp_path / "f.png", (7, 0, 0)),))
    joined = ConcatImages([empty, arrays, empty, files])
    assert len(joined) == 3
    assert [joined[at].convert("RGB").getpixel((0, 0))[0] for at in range(3)] == [0, 1, 7]
    assert joined.name(1) == "a[1]" and joined.name(2).endswith("f.png")
    assert joined.digest(2) == files.digest(0)
    assert joined.stamp(0) is None and joined.stamp(2) == files.stamp(0)
    for beyond in (-1, 3):
        with pytest.raises(IndexError):
            joined[beyond]


def test_arrays_must_be_bytes_of_an_image() -> None:
    for wrong in (np.zeros((2, 4, 4)), np.zeros((2, 4, 4, 2), np.uint8), np.zeros((4, 4), np.uint8)):
        with pytest.raises(FedgeoError, match="mine"):
            ArrayImages(wrong, "mine")


# --- folders


def test_class_folders_in_sorted_order(tmp_path: Path) -> None:
    tree(tmp_path / "set", "class_10/b.png", "class_1/z.JPG", "class_1/a.png", "class_2/c.png")
    for litter in (".DS_Store", "Thumbs.db", "class_1/Thumbs.db", "class_1/.hidden", "notes.txt"):
        (tmp_path / "set" / litter).write_text("x")
    source = image_folder(tmp_path / "set")
    assert (source.name, source.domains) == ("set", ("set",))
    assert source.classes == ("class_1", "class_10", "class_2")
    assert source.labels.tolist() == [0, 0, 1, 2] and source.labels.dtype == np.int64
    assert [Path(source.images.name(at)).name for at in range(4)] == ["a.png", "z.JPG", "b.png", "c.png"]
    assert source.split.tolist() == [UNSET] * 4


def test_official_split_folders(tmp_path: Path) -> None:
    source = image_folder(tree(tmp_path, "train/a/1.png", "train/b/1.png", "test/b/1.png", "val/a/1.png"))
    assert source.classes == ("a", "b")
    assert sorted(zip(source.split.tolist(), source.labels.tolist(), strict=True)) == [
        (TRAIN, 0), (TRAIN, 1), (VAL, 0), (TEST, 1),
    ]  # fmt: skip


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    source = image_folder(tree(tmp_path, "train/1.png", "car/1.png"))
    assert source.classes == ("car", "train") and set(source.split) == {UNSET}


def test_domains_and_the_union_of_their_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree(tmp_path, "north/cat/1.png", "north/dog/1.png", "south/dog/1.png", "south/dog/2.png", "south/eel/1.png")
    with caplog.at_level(logging.WARNING):
        source = domain_folder(tmp_path)
    assert source.classes == ("cat", "dog", "eel") and source.domains == ("north", "south")
    assert source.domain.tolist() == [0, 0, 1, 1, 1]
    assert source.labels.tolist() == [0, 1, 1, 1, 2]
    assert any("north" in line and "eel" in line for line in caplog.messages)
    assert any("south" in line and "cat" in line for line in caplog.messages)


def test_parts_of_one_set_are_no_domains(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="test, train are parts of one set, not domains: use data=image_folder"):
        domain_folder(tree(tmp_path, "train/a/1.png", "test/a/1.png"))


def test_domains_may_have_official_splits(tmp_path: Path) -> None:
    source = domain_folder(tree(tmp_path, "n/train/a/1.png", "n/test/a/1.png", "s/train/a/1.png", "s/test/a/1.png"))
    assert sorted(zip(source.domain, source.split, strict=True)) == [(0, TRAIN), (0, TEST), (1, TRAIN), (1, TEST)]


def test_accents_in_class_names_have_one_spelling(tmp_path: Path) -> None:
    source = domain_folder(tree(tmp_path, "n/caf\u00e9/1.png", "s/cafe\u0301/1.png"))
    assert source.classes == ("caf\u00e9",) and source.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["a/1.png", "b/list.csv"], "list.csv"),
        (["a/1.png", "b/"], "/b"),
        (["a/1.png", "loose.png"], "loose.png"),
        (["n/a/1.png", "n/b/1.png"], "domain_folder"),
        (["Dog/1.png", "dog/1.png"], "'Dog' and 'dog'"),
        ([], "class folders"),
    ],
)
def test_folders_that_are_refused_by_name(tmp_path: Path, files: list[str], named: str) -> None:
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        elif name.endswith(".png"):
            write(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x")
    with pytest.raises(FedgeoError, match=named):
        image_folder(tmp_path)


@pytest.mark.parametrize("load", [image_folder, domain_folder])
def test_a_missing_folder_is_named(tmp_path: Path, load: Callable) -> None:
    with pytest.raises(FedgeoError, match=r"nowhere.*data\.path"):
        load(tmp_path / "nowhere")


# --- data that needs no download


def test_sklearn_digits_are_proportional_to_the_original() -> None:
    source, original = sklearn_digits(), load_digits()
    assert len(source) == 1797 and source.classes == tuple("0123456789") and source.domains == ("digits",)
    assert np.array_equal(source.labels, original.target) and set(source.split) == {UNSET}
    pixels = np.stack([np.asarray(source.images[at], float) for at in range(len(source))])
    assert np.array_equal(pixels, original.images * 15)
