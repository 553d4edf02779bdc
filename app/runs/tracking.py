"""Following runs in TensorBoard, beside the run directory's own files: ``tracking=tensorboard``."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ..common.errors import FedgeoError
from ..config.schema import Config

FOLDER = "tensorboard"  # in the run directory, so that --logdir of a sweep shows all of its runs
LEFT_OUT = ("round", "clients")


class Tracker(Protocol):
    """What hears of a run."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A line of rounds.jsonl."""
        ...

    def end(self, run_dir: Path, summary: Mapping[str, Any]) -> None:
        """The run has ended; its figures are drawn."""
        ...


class Nothing:
    """No tracking."""

    def round(self, row: Mapping[str, Any]) -> None:
        pass

    def end(self, run_dir: Path, summary: Mapping[str, Any]) -> None:
        pass


class TensorBoard:
    """Scalars by round, and at the end the summary, the configuration and the figures."""

    def __init__(self, run_dir: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir / FOLDER), purge_step=done + 1)

    def round(self, row: Mapping[str, Any]) -> None:
        number = int(row["round"])
        for key, value in row.items():
            if isinstance(value, Mapping):
                for name, part in value.items():
                    self.writer.add_scalar(f"{key}/{name}", part, number)
            elif isinstance(value, int | float) and key not in LEFT_OUT:
                self.writer.add_scalar(key, value, number)
        self.writer.flush()

    def end(self, run_dir: Path, summary: Mapping[str, Any]) -> None:
        last = int(summary["rounds"])
        for name in ("config.yaml", "summary.json"):
            if (run_dir / name).is_file():
                text = (run_dir / name).read_text()
                self.writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), last)
        for path in sorted((run_dir / "figures").glob("*.png")):
            with Image.open(path) as image:
                self.writer.add_image(path.stem, np.asarray(image.convert("RGB")), last, dataformats="HWC")
        self.writer.close()


def check(config: Config) -> None:
    """Refuse a tracker that is not installed, before a run begins."""
    if config.tracking == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise FedgeoError("tracking=tensorboard: tensorboard is not installed: pip install tensorboard")


def tracker(config: Config, run_dir: Path, done: int = 0) -> Tracker:
    """What ``config.tracking`` asks for. done: the rounds that a resumed run goes on from."""
    check(config)
    return TensorBoard(run_dir, done) if config.tracking == "tensorboard" else Nothing()
