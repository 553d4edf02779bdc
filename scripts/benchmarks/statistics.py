"""Class statistics against the least that their arithmetic costs, and against their upload as they are."""

import time

import numpy as np

from app.geometry.class_statistics import ClassStatistics, gather
from scripts.benchmarks.pair import Pair

SAMPLES, DIMENSION = 5000, 512


def statistics() -> list[Pair]:
    """One class: ours checks, centres, multiplies and packs; the references multiply, or make the dense matrix."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((SAMPLES, DIMENSION)) + 1).astype(np.float32), np.zeros(SAMPLES, dtype=np.int64)
    wide = x.astype(np.float64)

    def ours() -> ClassStatistics:
        return gather(x, y)

    def product() -> np.ndarray:
        return wide.T @ wide

    def agree() -> None:
        found = ours()
        mean = found.means[0]
        np.testing.assert_allclose(SAMPLES * (found.covariance(0) + np.outer(mean, mean)), product(), rtol=1e-9)

    def upload() -> bytes:
        return b"".join(value.tobytes() for value in ours().to_arrays("float32").values())

    def dense() -> bytes:
        return np.cov(wide, rowvar=False, bias=True).tobytes() + wide.mean(axis=0).tobytes()

    def agree_on_upload() -> None:
        theirs = np.frombuffer(dense(), dtype=np.float64)
        found = ClassStatistics.from_arrays(ours().to_arrays("float32"), origin="ours")
        np.testing.assert_allclose(found.covariance(0).ravel(), theirs[: DIMENSION**2], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.means[0], theirs[DIMENSION**2 :], rtol=1e-6)

    sizes = f"{len(upload()) / 1e6:.2f} MB against {len(dense()) / 1e6:.2f} MB"
    what = f"{SAMPLES} x {DIMENSION} in one class"
    product_pair = Pair(
        f"{what}; against the bare float64 matrix product; CPU seconds",
        lambda: ours,
        lambda: product,
        agree,
        pairs=15,
        warm_up=2,
        clock=time.process_time,
    )
    upload_pair = Pair(
        f"{what}; ready to be sent, {sizes} of a dense float64 covariance; CPU seconds",
        lambda: upload,
        lambda: dense,
        agree_on_upload,
        pairs=15,
        warm_up=2,
        clock=time.process_time,
    )
    return [product_pair, upload_pair]
