"""The embedding cache: same numbers, nothing read twice, torn files redone, many writers, interruptions."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from app.common.errors import FedgeoError
from app.data.images.folders import ArrayImages, FileImages
from app.data.images.published import pacs
from app.encoders import embedding_cache
from app.encoders.embedding_cache import Shards, embed, normalise
from app.encoders.pixels import Pixels
from app.encoders.registry import build


class Counted:
    """Images that count how often one is decoded or hashed."""

    def __init__(self, inner: FileImages | ArrayImages) -> None:
        self.inner = inner
        self.decoded: list[int] = []
        self.hashed: list[int] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Image.Image:
        self.decoded.append(index)
        return self.inner[index]

    def name(self, index: int) -> str:
        return self.inner.name(index)

    def digest(self, index: int) -> str:
        self.hashed.append(index)
        return self.inner.digest(index)

    def stamp(self, index: int) -> str | None:
        return self.inner.stamp(index) if isinstance(self.inner, FileImages) else None


def pixels(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 6, 6), dtype=np.uint8)


def files(folder: Path, n: int) -> FileImages:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{at}.png" for at in range(n)]
    for path, image in zip(paths, pixels(n), strict=True):
        Image.fromarray(image).save(path)
    return FileImages(tuple(paths))


def bare(images: FileImages | ArrayImages, indices: list[int], encoder: Pixels) -> np.ndarray:
    return encoder.encode(torch.stack([encoder.preprocess(images[at]) for at in indices])).numpy()


def shard_files(cache: Path) -> list[Path]:
    return sorted((cache / "embeddings").glob("*/*.npy"))


ENCODER = Pixels(3)


@settings(max_examples=30)
@given(indices=st.lists(st.integers(0, 11), max_size=30), batch_size=st.integers(1, 9), cached=st.booleans())
def test_embeddings_are_those_of_a_bare_loop_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, indices: list[int], batch_size: int, cached: bool
) -> None:
    images = ArrayImages(np.concatenate([pixels(10), pixels(2)]), "set")  # the last two repeat the first
    cache = tmp_path_factory.mktemp("cache") if cached else None
    expected = bare(images, indices, ENCODER) if indices else np.zeros((0, 9), np.float32)
    for _ in range(2):
        found = embed(images, indices, ENCODER, cache=cache, batch_size=batch_size)
        assert found.dtype == np.float32 and np.array_equal(found, expected)


def test_a_second_run_reads_no_image(tmp_path: Path) -> None:
    images = Counted(files(tmp_path / "set", 7))
    first = embed(images, range(7), ENCODER, cache=tmp_path / "cache", batch_size=3)
    assert sorted(images.decoded) == sorted(images.hashed) == list(range(7))
    for path in images.inner.paths:  # not even bytes: what lies there now is no image
        state = path.stat()
        path.write_bytes(b"\0" * state.st_size)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    second = embed(images, range(7), ENCODER, cache=tmp_path / "cache", batch_size=3)
    assert np.array_equal(first, second)
    assert len(images.decoded) == len(images.hashed) == 7
    os.utime(images.inner.paths[4], ns=(state.st_atime_ns, state.st_mtime_ns + 1))  # size alone would not show it
    with pytest.raises(FedgeoError, match=r"4\.png: not a readable image"):
        embed(images, range(7), ENCODER, cache=tmp_path / "cache", batch_size=3)


def test_equal_content_is_encoded_once(tmp_path: Path) -> None:
    images = Counted(ArrayImages(np.repeat(pixels(2), 3, axis=0), "set"))
    found = embed(images, range(6), ENCODER, cache=tmp_path)
    assert images.decoded == [0, 3]
    assert np.array_equal(found, bare(images.inner, list(range(6)), ENCODER))


def test_a_changed_file_is_encoded_anew_and_a_copied_one_is_not(tmp_path: Path) -> None:
    images = files(tmp_path / "set", 3)
    before = embed(images, range(3), ENCODER, cache=tmp_path / "cache")
    Image.new("L", (6, 6), 200).save(images.paths[1])
    after = embed(images, range(3), ENCODER, cache=tmp_path / "cache")
    assert np.array_equal(after[[0, 2]], before[[0, 2]]) and np.allclose(after[1], 200 / 255)

    copy = tmp_path / "moved" / "other.png"
    copy.parent.mkdir()
    copy.write_bytes(images.paths[2].read_bytes())
    moved = Counted(FileImages((copy,)))
    assert np.array_equal(embed(moved, [0], ENCODER, cache=tmp_path / "cache"), before[[2]])
    assert moved.decoded == [] and moved.hashed == [0]


def test_encoders_and_precisions_do_not_mix(tmp_path: Path) -> None:
    images = ArrayImages(pixels(4), "set")
    for encoder in (ENCODER, Pixels(3, precision="bfloat16"), Pixels(2)):
        counted = Counted(images)
        embed(counted, range(4), encoder, cache=tmp_path)
        assert len(counted.decoded) == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "text", "record"])
def test_damaged_files_are_found_and_redone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(embedding_cache, "SHARD", 4)
    images = ArrayImages(pixels(12), "set")
    first = embed(images, range(12), ENCODER, cache=tmp_path, batch_size=4)
    assert len(shard_files(tmp_path)) == 3
    torn = shard_files(tmp_path)[1]
    content = torn.read_bytes()
    flipped = bytearray(content)
    flipped[-1] ^= 1
    torn.write_bytes(
        {
            "cut": content[:-7], "empty": b"", "header": content[: len(content) // 3][:20], "text": b"hello",
            "record": bytes(flipped),
        }[damage]
    )  # fmt: skip
    counted = Counted(images)
    assert np.array_equal(embed(counted, range(12), ENCODER, cache=tmp_path, batch_size=4), first)
    assert len(counted.decoded) == (1 if damage == "record" else 4)
    again = Counted(images)
    assert np.array_equal(embed(again, range(12), ENCODER, cache=tmp_path), first) and again.decoded == []


def test_a_damaged_memo_of_digests_is_redone(tmp_path: Path) -> None:
    images = Counted(files(tmp_path / "set", 3))
    first = embed(images, range(3), ENCODER, cache=tmp_path / "cache")
    (memo,) = (tmp_path / "cache" / "digests").glob("*.npy")
    memo.write_bytes(memo.read_bytes()[:-1])
    assert np.array_equal(embed(images, range(3), ENCODER, cache=tmp_path / "cache"), first)
    assert len(images.hashed) == 6 and len(images.decoded) == 3


class Interrupting(Pixels):
    """Gives up at the third batch."""

    batches = 0

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        Interrupting.batches += 1
        if Interrupting.batches == 3:
            raise KeyboardInterrupt
        return super().encode(batch)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    images = ArrayImages(pixels(20), "set")
    with pytest.raises(KeyboardInterrupt):
        embed(images, range(20), Interrupting(3), cache=tmp_path, batch_size=4)
    counted = Counted(images)
    found = embed(counted, range(20), ENCODER, cache=tmp_path, batch_size=4)
    assert sorted(counted.decoded) == list(range(8, 20))
    assert np.array_equal(found, bare(images, list(range(20)), ENCODER))


def write_at_once(cache: Path, seed: int) -> None:
    torch.set_num_threads(1)
    images = ArrayImages(pixels(40), "set")
    order = np.random.default_rng(seed).permutation(40)
    embedding_cache.SHARD = 5
    found = embed(images, order, ENCODER, cache=cache, batch_size=5)
    if not np.array_equal(found, bare(images, order.tolist(), ENCODER)):
        raise SystemExit(1)


def test_several_processes_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.encoders.embedding_cache"])
    writers = [context.Process(target=write_at_once, args=(tmp_path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    counted = Counted(ArrayImages(pixels(40), "set"))
    found = embed(counted, range(40), ENCODER, cache=tmp_path)
    assert counted.decoded == [] and np.array_equal(found, bare(counted.inner, list(range(40)), ENCODER))
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file() and entry.suffix != ".npy"]


def test_progress_counts_what_the_cache_held(tmp_path: Path) -> None:
    images = ArrayImages(pixels(10), "set")
    embed(images, range(4), ENCODER, cache=tmp_path)
    seen: list[tuple[int, int]] = []
    embed(images, range(10), ENCODER, cache=tmp_path, batch_size=4, progress=lambda *now: seen.append(now))
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_an_image_that_cannot_be_read_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    images = files(tmp_path / "set", 9)
    images.paths[7].write_bytes(b"no image")
    with pytest.raises(FedgeoError, match=r"7\.png"):
        embed(images, range(9), ENCODER, cache=tmp_path / "cache", batch_size=3)
    counted = Counted(images)
    embed(counted, range(6), ENCODER, cache=tmp_path / "cache")
    assert counted.decoded == []


class Overflowing(Pixels):
    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        values = super().encode(batch)
        return torch.where(values > 0.99, torch.inf, values)


def test_an_embedding_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    white = pixels(5) // 2
    white[3] = 255
    with pytest.raises(FedgeoError, match=r"set\[3\]"):
        embed(ArrayImages(white, "set"), range(5), Overflowing(3), batch_size=2)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(FedgeoError, match=r"taken.*: the cache cannot be written .*: set cache_dir"):
        embed(ArrayImages(pixels(2), "set"), range(2), ENCODER, cache=tmp_path / "taken")


def test_shards_hold_what_was_put(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "kept", np.dtype((np.float32, 3)))
    keys = [bytes([at]) * 32 for at in (0, 1, 255)]
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    shards.put(keys, values)
    shards.put(keys, values)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    found = shards.get([keys[2], keys[0], b"x" * 32])
    assert set(found) == {keys[0], keys[2]} and np.array_equal(found[keys[2]], values[2])


@given(arrays(np.float32, (4, 3), elements=st.floats(-100, 100, width=32)))
def test_l2_makes_unit_vectors_and_leaves_zero(values: np.ndarray) -> None:
    assert np.array_equal(normalise(values, "none"), values)
    lengths = np.linalg.norm(normalise(values, "l2").astype(float), axis=1)
    whole = np.linalg.norm(values.astype(float), axis=1) > 1e-15
    assert np.allclose(lengths[whole], 1, atol=1e-5) and np.isfinite(lengths).all()
    assert not normalise(np.zeros((1, 3), np.float16), "l2").any()


def test_an_unknown_normalisation_is_told() -> None:
    with pytest.raises(FedgeoError, match=r"\['none', 'l2'\], not 'max'"):
        normalise(np.ones((1, 2)), "max")


@pytest.mark.slow
def test_real_images_through_a_real_encoder(test_data: Path, tmp_path: Path) -> None:
    """PACS pictures, EfficientNet-Lite0, logistic regression: far above chance (1 in 7) on pictures held out."""
    pytest.importorskip("efficientnet_lite_pytorch")
    from sklearn.linear_model import LogisticRegression

    source = pacs(test_data / "images" / "pacs")
    assert source.images is not None
    images, encoder = Counted(source.images), build("efficientnet_lite0")  # type: ignore[arg-type]
    chosen = np.arange(0, len(source), 3)
    x = normalise(embed(images, chosen, encoder, cache=tmp_path), "l2")
    assert len(set(images.decoded)) == len(images.decoded) <= len(chosen)
    y, train = source.labels[chosen], np.arange(len(chosen)) % 3 > 0
    score = LogisticRegression(C=10, max_iter=500).fit(x[train], y[train]).score(x[~train], y[~train])
    assert score > 0.5
    images.decoded.clear()
    assert np.array_equal(normalise(embed(images, chosen, encoder, cache=tmp_path), "l2"), x)
    assert images.decoded == []
