"""The data of a rehearsal: a configured set dealt to sites and written as each site would keep its own."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..common.errors import FedgeoError
from ..config.compose import load
from ..config.schema import EegData
from ..data.images.dataset import ImageDataset, image_dataset

WHOLE = ("data.test_fraction=0", "data.val_fraction=0", "engine=inprocess", "augmentation=none", "method=fedavg")


def write_shares(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Deal all samples of the run's data set to as many sites as there are ``folders``, as its partition says.

    Images are written as class/number.png in each folder, embeddings as an npz file in it. Raises FedgeoError for EEG:
    a site keeps recordings, which the set is no longer.
    """
    words = [word for word in overrides if not word.startswith(("engine=", "augmentation=", "method="))]
    config = load((*words, *WHOLE, f"federation.clients={len(folders)}"))
    if isinstance(config.data, EegData):
        raise FedgeoError(f"data={config.data.name}: give the sites' folders of recordings with --data")
    dealt = image_dataset(config)
    for folder, rows in zip(folders, dealt.partition.clients, strict=True):
        folder.mkdir(parents=True)
        if dealt.source.images is not None:
            _write_images(dealt, rows, folder)
        else:
            _write_features(dealt, rows, folder)


def data_path(folder: Path) -> Path:
    """What a site's data-path is for what was written in ``folder``."""
    features = folder / "features.npz"
    return features if features.exists() else folder


def _write_images(dealt: ImageDataset, rows: np.ndarray, folder: Path) -> None:
    assert dealt.source.images is not None
    for row in rows:
        name = dealt.source.classes[dealt.source.labels[row]]
        if not re.fullmatch(r"\w[\w .-]*", name):
            raise FedgeoError(f"class {name!r} cannot be the name of a folder: give the sites' folders with --data")
        target = folder / name / f"{row:06}.png"
        target.parent.mkdir(exist_ok=True)
        dealt.source.images[int(row)].save(target)


def _write_features(dealt: ImageDataset, rows: np.ndarray, folder: Path) -> None:
    assert dealt.source.features is not None
    with (folder / "features.npz").open("wb") as file:
        np.savez(
            file,
            site_X=dealt.source.features[rows],
            site_y=dealt.source.labels[rows],
            classes=np.array(dealt.source.classes),
        )
