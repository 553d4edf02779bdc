"""Five hundred clients through Flower's simulation, against a fifth of them: seconds a round, and memory of all."""

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from app.launch.job import prepare, run_on_flower
from app.launch.simulation import SimulationSuperLink
from scripts.benchmarks.engines import Sampled
from scripts.benchmarks.pair import Pair

MANY, FEW, ROUNDS = 500, 100, 5
SAMPLES, TESTED, DIMENSION, CLASSES = 50_000, 1000, 512, 10
TARGET, RANK = 2000, 64


def clients() -> list[Pair]:
    """The wall clock of a round after the first; a fifth of the clients does a fifth of the work, sample for sample."""
    folder = Path(tempfile.mkdtemp(prefix="fedgeo-benchmark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    features = made(folder)
    ours, reference = Run(folder, features, MANY), Run(folder, features, FEW)
    return [
        Pair(
            f"{MANY} clients, {SAMPLES:,} x {DIMENSION}, {CLASSES} classes, Dir(0.1), GGEUR with target {TARGET:,} and "
            f"rank {RANK}, one epoch, {ROUNDS} rounds on {os.cpu_count()} cores; against {MANY // FEW} times a round "
            f"of {FEW} clients",
            lambda: ours.seconds,
            lambda: reference.seconds,
            lambda: None,  # two federations have no result in common; each run's own is checked
            pairs=1,
            warm_up=0,
            share=FEW / MANY,
            memory=lambda: (ours.sampled.peak, reference.sampled.peak),
        )
    ]


def made(folder: Path) -> Path:
    """Synthetic embeddings of classes that overlap, as an npz file for data=features."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, DIMENSION)) / 4
    y = rng.integers(0, CLASSES, SAMPLES + TESTED)
    x = (centres[y] + rng.standard_normal((len(y), DIMENSION))).astype(np.float32)
    path = folder / "features.npz"
    np.savez(path, train_X=x[:SAMPLES], train_y=y[:SAMPLES], test_X=x[SAMPLES:], test_y=y[SAMPLES:])
    return path


class Run:
    """A federation of so many clients over the same samples, run when its seconds are asked for."""

    def __init__(self, folder: Path, features: Path, number: int) -> None:
        self.folder, self.features, self.number = folder, features, number
        self.sampled = Sampled(own=True)

    def seconds(self) -> float:
        """Mean seconds of the rounds after the first."""
        words = ["data=features", f"data.path={self.features}", "data.val_fraction=0.0", "encoder.normalise=none"]
        words += ["federation.partition=dirichlet", "federation.beta=0.1", f"federation.clients={self.number}"]
        words += ["augmentation=ggeur", f"augmentation.target={TARGET}", f"augmentation.max_rank={RANK}"]
        words += ["training.epochs=1", f"federation.rounds={ROUNDS}"]
        job = prepare(words, run_dir=Path(tempfile.mkdtemp(dir=self.folder)) / "run")

        def call() -> Path:
            run_on_flower(job, link, lambda row: None, lambda line: None)
            return job.run_dir

        with SimulationSuperLink() as link:
            out = self.sampled.during(call, link.mark)
        taken = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        assert len(taken) == ROUNDS, f"{len(taken)} of {ROUNDS} rounds"
        return float(np.mean(taken[1:]))
