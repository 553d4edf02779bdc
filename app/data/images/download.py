"""What the loaders of distributed data sets share: where to look, how to join parts, what to say if one is missing."""

import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ...common.errors import FedgeoError
from ...common.files import atomic_folder
from ...encoders.images import Images
from ..source import Source
from .decoding import open_image
from .folders import SUFFIXES, ConcatImages, FileImages

if TYPE_CHECKING:
    from datasets import Dataset

Part = tuple[Images, np.ndarray, int]
"""Images, their labels and their split."""


def set_folder(path: Path | str | None, name: str) -> Path:
    """``path``, or where the set called ``name`` lies by default: ``datasets/<name>`` in torch's cache folder."""
    if path is not None:
        return Path(path).expanduser()
    import torch

    return Path(torch.hub.get_dir()).parent / "datasets" / name


def missing(
    name: str, looked: Path, fetch: str, layout: str, *, download: bool = True, fault: Exception | None = None
) -> FedgeoError:
    """The error for a set that is not there: where it was looked for, what to fetch, where to put it.

    ``download`` tells whether the loader could fetch the set by itself.
    """
    because = f" ({first_line(fault)})" if fault else ""
    otherwise = ", or data.download=true where there is a network" if download else ""
    return FedgeoError(
        f"{name}: not found in {looked}{because}: fetch {fetch} so that {looked / layout} exists, or set data.path to "
        f"where it is{otherwise}"
    )


def first_line(fault: Exception) -> str:
    return str(fault).strip().split("\n")[0]


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder of a distributed set, sorted; whatever else lies there is part of the set."""
    if not folder.is_dir():
        raise FedgeoError(f"{folder}: no such folder: the data set is incomplete, unpack it anew")
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != ".")


def file_part(rows: Sequence[tuple[Path, int]], split: int) -> Part:
    """A part of (file, label) rows."""
    return FileImages(tuple(file for file, _ in rows)), np.array([label for _, label in rows], np.int64), split


def joined(
    name: str, classes: Sequence[str], domains: Sequence[str], parts: Sequence[Part], places: Sequence[int]
) -> Source:
    """One source of all parts; ``places`` holds each part's domain, an index into ``domains``."""
    sizes = [len(images) for images, _, _ in parts]
    return Source(
        name=name,
        classes=tuple(classes),
        domains=tuple(domains),
        labels=np.concatenate([labels for _, labels, _ in parts]).astype(np.int64),
        domain=np.repeat(np.array(places, np.int64), sizes),
        split=np.repeat(np.array([split for *_, split in parts], np.int8), sizes),
        images=ConcatImages([images for images, _, _ in parts]),
    )


class HubImages:
    """The images of a Hugging Face data set, as stored there, decoded one at a time."""

    def __init__(self, table: "Dataset", origin: str) -> None:
        self.table = table
        self.origin = origin

    def __len__(self) -> int:
        return len(self.table)

    def _bytes(self, index: int) -> bytes:
        return self.table[index]["image"]["bytes"]

    def __getitem__(self, index: int) -> Image.Image:
        return open_image(io.BytesIO(self._bytes(index)), self.name(index))

    def name(self, index: int) -> str:
        return f"{self.origin}[{index}]"

    def digest(self, index: int) -> str:
        return hashlib.sha256(self._bytes(index)).hexdigest()

    def stamp(self, index: int) -> str:
        """What changes with the files that the table was read from (their names, sizes, times), without reading it."""
        return f"{self.origin}|{self.table._fingerprint}|{index}"


def hub_folder(repository: str, folder: Path, cached: bool, download: bool) -> Path | None:
    """Where the parquet files of a Hugging Face data set lie; None if nowhere.

    ``folder`` itself if it holds some; else the Hugging Face cache, if ``cached`` allows it or after a ``download``.
    """
    if any(folder.glob("*.parquet")) or any(folder.glob("data/*.parquet")):
        return folder
    if not (cached or download):
        return None
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                repository, repo_type="dataset", allow_patterns=["*.parquet"], local_files_only=not download
            )
        )
    except OSError as fault:
        if download:
            raise FedgeoError(f"{repository}: the download from Hugging Face failed: {first_line(fault)}") from fault
        return None


def from_hub(name: str, folder: Path, splits: Mapping[str, int]) -> Source:
    """A source from parquet files with columns image, label (with class names) and, for several domains, domain.

    ``splits`` maps the names of the stored splits, as in the files' names, to those of Source.
    """
    from datasets import Image as ImageColumn
    from datasets import load_dataset

    tables = load_dataset(str(folder))
    if absent := sorted(set(splits) - set(tables)):
        raise FedgeoError(f"{name}: split {absent} is missing among the parquet files in {folder}")
    stored = {split: tables[split].cast_column("image", ImageColumn(decode=False)) for split in splits}
    parts: list[Part] = [
        (HubImages(table.select_columns(["image"]), f"{name} {split}"), np.asarray(table["label"]), splits[split])
        for split, table in stored.items()
    ]
    first = next(iter(stored.values()))
    source = joined(name, first.features["label"].names, [name], parts, [0] * len(parts))
    if "domain" not in first.features:
        return source
    names = [domain for table in stored.values() for domain in table["domain"]]
    domains, domain = np.unique(names, return_inverse=True)
    return replace(source, domains=tuple(map(str, domains)), domain=domain.astype(np.int64))


def unpack_from_hub(repository: str, file: str, target: Path) -> None:
    """Fetch a zip file of a Hugging Face data set and unpack it as the folder ``target``, all or nothing."""
    from huggingface_hub import hf_hub_download

    try:
        archive = hf_hub_download(repository, file, repo_type="dataset")
    except OSError as fault:
        raise FedgeoError(f"{repository}: the download from Hugging Face failed: {first_line(fault)}") from fault
    with atomic_folder(target) as folder:
        shutil.unpack_archive(archive, folder, "zip")
