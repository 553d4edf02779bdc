"""The digits of the GGEUR paper in four domains: MNIST, USPS, SVHN and SYN."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError
from ..source import TEST, TRAIN, UNSET, VAL, Source
from .download import Part, file_part, first_line, image_files, joined, missing, set_folder
from .folders import ArrayImages

DIGITS = ("mnist", "usps", "svhn", "syn")


def digits(path: Path | str | None = None, *, domains: Sequence[str] = DIGITS, download: bool = False) -> Source:
    """Digits in up to four domains, each in a folder of its name: mnist, usps, svhn, syn.

    mnist: the four idx files (also under MNIST/raw); usps: usps.bz2 and usps.t.bz2, or usps.h5; svhn: train_32x32.mat
    and test_32x32.mat; syn: synth_train_32x32.mat and synth_test_32x32.mat, or train and val (imgs_train, imgs_valid)
    folders of images. Any of them may instead be class folders 0..9, or such folders under train and test.
    ``download`` fetches mnist, usps and svhn; syn has no lasting source and must be put there.
    """
    folder = set_folder(path, "digits")
    if unknown := sorted(set(domains) - set(DIGITS)):
        raise FedgeoError(f"digits: unknown domains {unknown}: choose among {list(DIGITS)}")
    held = {entry.name.lower(): entry for entry in sorted(folder.iterdir())} if folder.is_dir() else {}
    parts: list[Part] = []
    places: list[int] = []
    for place, domain in enumerate(domains):
        found = _digit_parts(domain, held.get(domain, folder / domain), download)
        parts += found
        places += [place] * len(found)
    return joined("digits", [str(digit) for digit in range(10)], tuple(domains), parts, places)


def _digit_parts(domain: str, folder: Path, download: bool) -> list[Part]:
    held_out = VAL if (folder / "test").is_dir() else TEST  # SYN is distributed as train and val alone
    named = {"imgs_train": TRAIN, "train": TRAIN, "imgs_valid": TEST, "val": held_out, "test": TEST}
    splits = {folder / part: split for part, split in named.items() if (folder / part).is_dir()}
    roots = splits or ({folder: UNSET} if (folder / "0").is_dir() else {})
    if roots:
        return [
            file_part([(file, digit) for digit in range(10) for file in image_files(root / str(digit))], split)
            for root, split in roots.items()
        ]
    return {"mnist": _mnist, "usps": _usps, "svhn": _svhn, "syn": _syn}[domain](folder, download)


def _mnist(folder: Path, download: bool) -> list[Part]:
    from torchvision.datasets import MNIST
    from torchvision.datasets.mnist import read_image_file, read_label_file

    if download:
        _fetch(MNIST, folder)
    places = (folder, folder / "raw", folder / "MNIST" / "raw")
    raw = next((place for place in places if (place / "train-images-idx3-ubyte").is_file()), None)
    if raw is None:
        raise missing("digits", folder, f"MNIST from {MNIST.mirrors[-1]} and unpack it", "train-images-idx3-ubyte")
    return [
        (
            ArrayImages(read_image_file(str(raw / f"{part}-images-idx3-ubyte")).numpy(), f"mnist {part}"),
            read_label_file(str(raw / f"{part}-labels-idx1-ubyte")).numpy(),
            split,
        )
        for part, split in (("train", TRAIN), ("t10k", TEST))
    ]


def _usps(folder: Path, download: bool) -> list[Part]:
    if (folder / "usps.h5").is_file():
        import h5py

        with h5py.File(folder / "usps.h5") as file:
            stored = [(file[part]["data"][:], file[part]["target"][:], part) for part in ("train", "test")]
        return [
            (ArrayImages(np.rint(x.reshape(-1, 16, 16) * 255).astype(np.uint8), f"usps {part}"), y, split)
            for (x, y, part), split in zip(stored, (TRAIN, TEST), strict=True)
        ]
    from torchvision.datasets import USPS

    try:
        train, test = (USPS(str(folder), train=train, download=download) for train in (True, False))
    except (RuntimeError, OSError) as fault:
        fetch = " and ".join(url for url, *_ in USPS.split_list.values())
        raise missing("digits", folder, fetch, "usps.bz2", fault=fault) from fault
    return [
        (ArrayImages(part.data, f"usps {name}"), np.asarray(part.targets), split)
        for part, name, split in ((train, "train", TRAIN), (test, "test", TEST))
    ]


def _svhn(folder: Path, download: bool) -> list[Part]:
    from torchvision.datasets import SVHN

    if download:
        for part in ("train", "test"):
            _fetch(SVHN, folder, split=part)
    fetch = " and ".join(SVHN.split_list[part][0] for part in ("train", "test"))
    return _mat_parts("svhn", folder, "{}_32x32.mat", fetch, download=True)


def _fetch(loader: type, folder: Path, **part: str) -> None:
    try:
        loader(str(folder), download=True, **part)
    except (RuntimeError, OSError) as fault:
        raise FedgeoError(f"{loader.__name__}: the download into {folder} failed: {first_line(fault)}") from fault


def _syn(folder: Path, download: bool) -> list[Part]:
    fetch = "the synthetic digits (synth_train_32x32.mat, synth_test_32x32.mat; domainadaptation/datasets on GitHub)"
    return _mat_parts("syn", folder, "synth_{}_32x32.mat", fetch, download=False)


def _mat_parts(domain: str, folder: Path, pattern: str, fetch: str, *, download: bool) -> list[Part]:
    """MATLAB files with X (height, width, 3, n) and y in 1..10, where 10 is the digit 0."""
    from scipy.io import loadmat

    parts: list[Part] = []
    for part, split in (("train", TRAIN), ("test", TEST)):
        file = folder / pattern.format(part)
        if not file.is_file():
            raise missing("digits", folder, fetch, file.name, download=download)
        content = loadmat(file)
        labels = content["y"].reshape(-1).astype(np.int64) % 10
        parts.append((ArrayImages(content["X"].transpose(3, 0, 1, 2), f"{domain} {part}"), labels, split))
    return parts
