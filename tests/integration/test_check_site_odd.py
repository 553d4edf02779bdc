"""A site's check of anything at all: lines that name the file, and never a traceback."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.tools.site_check import check_site
from tests.eeg_files import make_raw, save

EEG = ("experiment=eeg_folder", "data.events={left_hand: T1, right_hand: T2}", "model.hidden=[2]")


def empty(root: Path) -> Path:
    root.mkdir()
    return root


def a_file(root: Path) -> Path:
    root.write_text("hello")
    return root


def zero_npz(root: Path) -> Path:
    path = root.with_suffix(".npz")
    path.touch()
    return path


def text_npz(root: Path) -> Path:
    path = root.with_suffix(".npz")
    np.savez(path, a_X=np.array(["x"]), a_y=np.array(["y"]))
    return path


def no_images(root: Path) -> Path:
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        (root / label / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        (root / label / "y.tif").write_bytes(b"II*\0")
        (root / label / "z.jpg").touch()
    return root


def cut_images(root: Path) -> Path:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 2**12, (32, 32)).astype(np.uint16))
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for suffix in ("png", "tif"):
            picture.save(root / label / f"x.{suffix}")
            whole = (root / label / f"x.{suffix}").read_bytes()
            (root / label / f"x.{suffix}").write_bytes(whole[: len(whole) // 2])
    return root


def noise(root: Path) -> Path:
    for suffix in ("edf", "bdf", "gdf", "fif", "vhdr", "set"):
        (root / suffix).mkdir(parents=True)
        (root / suffix / f"x.{suffix}").write_bytes(b"\x93\xff nothing" * 40)
    return root


def zero_bytes(root: Path) -> Path:
    for suffix in ("edf", "bdf", "gdf", "fif", "vhdr", "set"):
        (root / suffix).mkdir(parents=True)
        (root / suffix / f"x.{suffix}").touch()
    return root


def nul_labels(root: Path) -> Path:
    save(make_raw(), root / "S1" / "x_raw.fif")
    (root / "labels.csv").write_bytes(b"file,label\0\nS1/x_raw.fif,a\n")
    return root


ODD: list[tuple[Callable[[Path], Path], tuple[str, ...], str]] = [
    (empty, (), "holds neither images nor recordings"),
    (a_file, (), "a file must be an npz"),
    (zero_npz, (), "not a readable npz"),
    (text_npz, (), "a_X must be floating point"),
    (no_images, (), "not a readable image"),
    (cut_images, (), "not a readable image"),
    (noise, EEG, "copy"),
    (zero_bytes, EEG, "copy"),
    (nul_labels, (*EEG, "data.labels_csv=labels.csv", "data.windows=[1,1]"), "not a text table"),
]


@pytest.mark.parametrize(("make", "words", "said"), ODD, ids=lambda value: getattr(value, "__name__", ""))
def test_every_fault_is_one_line_that_says_what_it_is(
    tmp_path: Path, make: Callable[[Path], Path], words: tuple[str, ...], said: str
) -> None:
    found = check_site(make(tmp_path / "site"), words)
    assert not found.ok and any(said in fault for fault in found.faults), found.faults
    for fault in found.faults:
        assert "\n" not in fault and "cannot be checked" not in fault and "delete" not in fault
