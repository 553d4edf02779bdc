"""Images to embeddings: decoded ahead and encoded in batches, against image after image; and inside a run."""

import atexit
import itertools
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from app.common.errors import FedgeoError
from app.data.images.dataset import dataset_of, image_dataset
from app.data.images.dataset import encoder as configured
from app.encoders import efficientnet_lite0
from app.encoders.embedding_cache import embed
from app.launch.job import Job, prepare, run_in_process
from scripts.benchmarks.pair import Pair

IMAGES, SIDE, BATCH = 64, 320, 32
FILES, CLASSES = 256, 4  # of the run's


class Photographs:
    """Images in memory that look like photographs to a codec: smooth, with some noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)
        self.images = [Image.fromarray(each).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for each in coarse]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:
        return self.images[index]

    def digest(self, index: int) -> str:
        return f"{index:064x}"

    def name(self, index: int) -> str:
        return f"image {index}"


def encode() -> list[Pair]:
    """EfficientNet-Lite0 on the CPU, without a cache."""
    images = Photographs()
    try:
        encoder = efficientnet_lite0.build(device="cpu", precision="float32")
    except (FedgeoError, ImportError) as error:
        raise FedgeoError(f"encode needs a pretrained encoder: {error}") from None

    def ours() -> np.ndarray:
        return embed(images, np.arange(IMAGES), encoder, cache=None, batch_size=BATCH)

    def one_by_one() -> np.ndarray:
        parts = [encoder.encode(encoder.preprocess(images[i])[None]) for i in range(IMAGES)]
        return torch.cat(parts).numpy()

    def agree() -> None:
        np.testing.assert_allclose(ours(), one_by_one(), rtol=1e-3, atol=1e-4)

    files = Files()
    return [
        Pair(
            f"{FILES} files of {SIDE} x {SIDE} by {encoder.name} in a run, the time that it takes more with an empty "
            f"cache than with a full one; against a bare loop over batches of {BATCH}",
            lambda: files.in_a_run,
            lambda: files.bare,
            files.agree,
            pairs=5,
            warm_up=0,
        ),
        Pair(
            f"{IMAGES} images of {SIDE} x {SIDE} by {encoder.name}, batches of {BATCH}; against one image at a time",
            lambda: ours,
            lambda: one_by_one,
            agree,
            pairs=5,
            warm_up=1,
        ),
    ]


class Files:
    """JPEG files in class folders, and the ways to their embeddings."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedgeo-benchmark-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.numbers = itertools.count()
        photographs = Photographs()
        self.paths = []
        for number in range(FILES):
            image = photographs[number % IMAGES].rotate(number)  # no two alike, so that none is encoded once for two
            path = self.folder / "images" / f"class{number % CLASSES}" / f"{number:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)
            self.paths.append(path)

    def job(self, cache: Path) -> Job:
        words = ["experiment=image_folder", f"data.path={self.folder / 'images'}", "augmentation=none"]
        words += ["federation.clients=2", "federation.partition=iid", "federation.rounds=1", f"cache_dir={cache}"]
        words += ["encoder=efficientnet_lite0", "encoder.precision=float32", f"encoder.batch_size={BATCH}"]
        return prepare([*words, "device=cpu"], run_dir=self.folder / f"run-{next(self.numbers)}")

    def in_a_run(self) -> float:
        """Seconds that a run's encoding takes."""
        cache = self.folder / f"cache-{next(self.numbers)}"
        taken = []
        for _ in ("empty", "full"):
            dataset_of.cache_clear()  # a run in a process of its own begins so
            job, start = self.job(cache), time.perf_counter()
            run_in_process(job, lambda row: None)
            taken.append(time.perf_counter() - start)
        return taken[0] - taken[1]

    def bare(self) -> np.ndarray:
        """The bare loop: decode, preprocess, stack, encode."""
        encoder = configured(self.job(self.folder).config)
        parts = []
        for start in range(0, FILES, BATCH):
            batch = [encoder.preprocess(Image.open(path).convert("RGB")) for path in self.paths[start : start + BATCH]]
            parts.append(encoder.encode(torch.stack(batch)).numpy())
        return np.concatenate(parts)

    def agree(self) -> None:
        """What the run has of its clients and test set is what the loop has, row by row."""
        found = image_dataset(self.job(self.folder / "agreed").config)
        assert found.source.images is not None
        rows = np.array([found.source.images.name(row) for row in range(FILES)])
        expected = {str(path): value for path, value in zip(self.paths, self.bare(), strict=True)}
        expected = {name: value / np.linalg.norm(value) for name, value in expected.items()}
        features = found.features(np.arange(FILES))
        for name, value in zip(rows, features, strict=True):
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5)
