"""Embeddings from npz files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.errors import FedgeoError
from app.data.images.features import features
from app.data.source import TEST, TRAIN, UNSET, VAL, Blocks


def saved(folder: Path, **arrays: object) -> Path:
    file = folder / "made.npz"
    np.savez(file, **{key: np.asarray(value) for key, value in arrays.items()})
    return file


def block(n: int, p: int = 3, dtype: type = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, p)).astype(dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), half=st.booleans(), seed=st.integers(0, 99))
def test_domains_come_back_as_they_were_saved(folder: Path, sizes: list[int], half: bool, seed: int) -> None:
    dtype = np.float16 if half else np.float32
    blocks = {f"site_{at}": block(n, dtype=dtype, seed=seed + at) for at, n in enumerate(sizes)}
    labels = {name: np.random.default_rng(seed).integers(0, 4, len(x)) for name, x in blocks.items()}
    arrays = {f"{name}_X": x for name, x in blocks.items()} | {f"{name}_y": y for name, y in labels.items()}
    source = features(saved(folder, classes=list("abcd"), **arrays))
    assert source.domains == tuple(blocks) and source.classes == tuple("abcd")
    assert source.features is not None and source.features.dtype == dtype
    for at, name in enumerate(blocks):
        here = source.domain == at
        assert np.array_equal(source.features[here], blocks[name])
        assert np.array_equal(source.labels[here], labels[name])
    assert set(source.split) == {UNSET}


def test_the_official_split_is_one_domain(tmp_path: Path) -> None:
    file = saved(
        tmp_path, train_X=block(3), train_y=[0, 1, 1], test_X=block(2), test_y=[1, 0], val_X=block(1), val_y=[0]
    )
    source = features(file)
    assert source.domains == ("made",) and source.name == "made" and set(source.domain) == {0}
    assert source.split.tolist() == [TRAIN] * 3 + [TEST] * 2 + [VAL]
    assert source.labels.tolist() == [0, 1, 1, 1, 0, 0]


def test_splits_by_domain_as_names_or_numbers(tmp_path: Path) -> None:
    arrays = {"a_X": block(3), "a_y": [0, 1, 0], "b_X": block(4), "b_y": [0] * 4, "c_X": block(1), "c_y": [1]}
    source = features(saved(tmp_path, **arrays, a_split=["train", "val", "test"], b_split=[0, 1, 2, -1]))
    assert source.split.tolist() == [TRAIN, VAL, TEST, TRAIN, VAL, TEST, UNSET, UNSET]


def test_without_names_the_labels_that_occur_are_the_classes(tmp_path: Path) -> None:
    source = features(saved(tmp_path, a_X=block(3), a_y=[7, 2, 10], b_X=block(1), b_y=[2]))
    assert source.classes == ("2", "7", "10")
    assert source.labels.tolist() == [1, 0, 2, 0]


def test_mixed_precisions_become_float32(tmp_path: Path) -> None:
    source = features(
        saved(tmp_path, a_X=block(2, dtype=np.float16), a_y=[0, 0], b_X=block(2, dtype=np.float64), b_y=[0, 0])
    )
    assert source.features is not None and source.features.dtype == np.float32
    assert np.allclose(source.features[2:], block(2, dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_is_stored_as_it_is_stays_in_the_file(tmp_path: Path, save: Callable[..., None]) -> None:
    blocks = [block(5), np.asfortranarray(block(4, seed=1)), block(3, seed=2, dtype=np.float16)]
    file = tmp_path / "made.npz"
    save(file, **{f"{n}_X": x for n, x in enumerate(blocks)}, **{f"{n}_y": [0] * len(x) for n, x in enumerate(blocks)})
    found = features(file).features
    assert isinstance(found, Blocks)
    mapped = save is np.savez
    assert [isinstance(each, np.memmap) for each in found.blocks] == [mapped, False, mapped]
    rows = np.array([11, 0, 7, 7, 4, 9])
    np.testing.assert_array_equal(found[rows], np.concatenate(blocks).astype(np.float32)[rows])


def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, a_X=block(50), a_y=[0] * 50)
    content = bytearray(file.read_bytes())
    content[content.index(block(50).tobytes()) + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(FedgeoError, match="not a readable npz file"):
        features(file)


GOOD = {"a_X": block(5), "a_y": [0, 1, 0, 1, 0], "b_X": block(5, seed=1), "b_y": [1, 0, 1, 0, 1]}
HOLED = block(5)
HOLED[3, 1] = np.nan


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"b_X": HOLED}, "domain 'b', row 3: NaN"),
        ({"b_X": np.full((5, 3), 1e300)}, "domain 'b', row 0"),
        ({"b_X": block(5, p=4)}, "b_X has dimension 4, a_X 3"),
        ({"b_X": block(5)[:, 0]}, r"b_X must be .* \(n, p\)"),
        ({"b_X": np.ones((5, 3), int)}, "b_X must be floating point"),
        ({"b_X": np.zeros((0, 3)), "b_y": []}, "domain 'b' holds no samples"),
        ({"b_y": [0, 1]}, r"b_y has shape \(2,\), expected \(5,\)"),
        ({"b_y": [0.0, 1.0, 0.0, 1.0, 0.5]}, "b_y must hold whole numbers"),
        ({"b_y": [0, 1, 0, -1, 0]}, "domain 'b', row 3: label -1"),
        ({"classes": ["x"]}, "domain 'a', row 1: label 1, but there are 1 classes"),
        ({"classes": ["x", "y", "x"]}, r"names a class twice: \['x'\]"),
        ({"c_X": block(2)}, "domain 'c' has no c_y"),
        ({"c_y": [0]}, "domain 'c' has no c_X"),
        ({"train_X": block(1), "train_y": [0]}, r"\['train'\] are names of splits"),
        ({"b_split": ["train"] * 4 + ["dev"]}, r"b_split holds \['dev'\]"),
        ({"b_split": [0]}, r"b_split has shape \(1,\)"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict, told: str) -> None:
    with pytest.raises(FedgeoError, match=told):
        features(saved(tmp_path, **(GOOD | change)))


def test_files_that_are_no_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match=r"away\.npz: no such file"):
        features(tmp_path / "away.npz")
    torn = saved(tmp_path, **GOOD)
    torn.write_bytes(torn.read_bytes()[:-100])
    with pytest.raises(FedgeoError, match=r"made\.npz: not a readable npz"):
        features(torn)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(FedgeoError, match=r"text\.npz: not a readable npz"):
        features(tmp_path / "text.npz")
    np.save(tmp_path / "array.npy", block(2))
    with pytest.raises(FedgeoError, match=r"array\.npy: not a readable npz"):
        features(tmp_path / "array.npy")
    with pytest.raises(FedgeoError, match="expected keys <domain>_X"):
        features(saved(tmp_path, weights=block(2)))
    with pytest.raises(FedgeoError, match="not a readable npz file of plain arrays"):
        features(saved(tmp_path, a_X=block(1), a_y=np.array([{}], object)))


def test_real_files(test_data: Path) -> None:
    source = features(test_data / "features" / "pacs_efflite0.npz")
    assert source.domains == ("art_painting", "cartoon", "photo", "sketch") and len(source) == 9991
    assert source.features is not None and source.features.shape == (9991, 1280)
    assert source.features.dtype == np.float16 and source.classes[-1] == "person"
    assert np.bincount(source.domain).tolist() == [2048, 2344, 1670, 3929]
    split = features(test_data / "features" / "cifar10_efflite0.npz")
    assert np.bincount(split.split).tolist() == [8000, 0, 2000] and split.domains == ("cifar10_efflite0",)
    assert features(test_data / "features" / "digits_efflite0.npz").classes == tuple("0123456789")
