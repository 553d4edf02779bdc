"""Images that are trained and tested on are told by the data set, so by every run."""

from pathlib import Path

import numpy as np
from PIL import Image

from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.data.images.folders import FileImages
from app.data.images.shared import shared_images


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 6), np.uint8))


def test_pixels_count_and_neither_the_format_nor_the_channels(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "one.png")
    picture(1).save(tmp_path / "one.bmp")
    picture(1).convert("RGB").save(tmp_path / "one.tif")
    picture(2).save(tmp_path / "two.png")
    images = FileImages(tuple(tmp_path / name for name in ("one.png", "two.png", "one.bmp", "one.tif")))
    assert shared_images(images, [0, 1], [2, 3], None) == [(2, 0), (3, 0)]
    for _ in range(2):  # the second time from the cache
        assert shared_images(images, [1], [0, 2], tmp_path / "cache") == []
        assert shared_images(images, [0, 1], [2], tmp_path / "cache") == [(2, 0)]


def test_a_data_set_warns_and_names_a_pair_below_its_folder(tmp_path: Path) -> None:
    for part, seeds in (("train", range(6)), ("test", range(4, 8))):
        for label in ("a", "b"):
            (tmp_path / "set" / part / label).mkdir(parents=True)
            for seed in seeds:
                picture(seed + 100 * (label == "b")).save(tmp_path / "set" / part / label / f"{part}{seed}.png")
    words = ["experiment=image_folder", "augmentation=none", "encoder=pixels", "federation.clients=1"]
    words += ["data.val_fraction=0", f"data.path={tmp_path / 'set'}", f"cache_dir={tmp_path / 'cache'}"]
    (told,) = image_dataset(load(words)).warnings
    assert told.startswith("4 of 8 test images are also trained or validated on")
    assert told.endswith("test/a/test4.png has the pixels of train/a/train4.png")
