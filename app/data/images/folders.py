"""Images as folders of files or arrays in memory."""

import hashlib
import logging
import os
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image

from ...common.errors import FedgeoError, cause
from ...encoders.images import Images
from ..source import TEST, TRAIN, UNSET, VAL, Source
from .decoding import FULL, greatest_value, open_image

log = logging.getLogger(__name__)

_JPEG = {".jpg", ".jpeg", ".jpe", ".jfif", ".jp2"}
SUFFIXES = frozenset(
    _JPEG | {".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".pbm", ".pgm", ".ppm", ".pnm"}
)
_MAY_BE_DEEP = frozenset({".png", ".tif", ".tiff"})  # of 16-bit values that do not say how many bits are used
SPLITS = {"train": TRAIN, "training": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST}
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


@dataclass(frozen=True)
class FileImages:
    """One file an image, opened when it is asked for. bits: how many of a 16-bit file's values are used."""

    paths: tuple[Path, ...]
    bits: int = FULL

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:
        return open_image(self.paths[index], self.name(index), self.bits)

    def greatest(self, index: int) -> int | None:
        """The greatest value of an image of 16-bit values, None of others."""
        return greatest_value(self.paths[index], self.name(index)) if self.may_be_deep(index) else None

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def digest(self, index: int) -> str:
        with self.paths[index].open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        content.update(self._scale(index).encode())
        return content.hexdigest()

    def stamp(self, index: int) -> str:
        """What changes when the file is written again, without reading it: path, size and time of modification."""
        state = self.paths[index].stat()
        return f"{os.path.abspath(self.paths[index])}|{state.st_size}|{state.st_mtime_ns}{self._scale(index)}"

    def may_be_deep(self, index: int) -> bool:
        """Whether an image can hold 16-bit values, by its suffix."""
        return self.paths[index].suffix.lower() in _MAY_BE_DEEP

    def _scale(self, index: int) -> str:
        """What is part of an image's identity beside its file: by which range it is scaled."""
        return f"|{self.bits} bits" if self.bits != FULL and self.may_be_deep(index) else ""


@dataclass(frozen=True)
class ArrayImages:
    """Images held in memory as uint8 pixels, (n, height, width) grey or (n, height, width, 3) RGB.

    ``origin`` names the set in error messages.
    """

    pixels: np.ndarray
    origin: str

    def __post_init__(self) -> None:
        grey = self.pixels.ndim == 3
        if self.pixels.dtype != np.uint8 or not (grey or (self.pixels.ndim == 4 and self.pixels.shape[3] == 3)):
            raise FedgeoError(
                f"{self.origin}: images must be uint8 of shape (n, height, width) or (n, height, width, 3), "
                f"not {self.pixels.dtype} of shape {self.pixels.shape}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self.pixels[index]))

    def name(self, index: int) -> str:
        return f"{self.origin}[{index}]"

    def digest(self, index: int) -> str:
        one = np.ascontiguousarray(self.pixels[index])
        return hashlib.sha256(repr(one.shape).encode() + one.tobytes()).hexdigest()


class ConcatImages:
    """Several image sequences, one after the other, as one."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = tuple(parts)
        self.ends = tuple(accumulate(len(part) for part in parts))

    def _place(self, index: int) -> tuple[Images, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = bisect_right(self.ends, index)
        return self.parts[part], index - (self.ends[part - 1] if part else 0)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index: int) -> Image.Image:
        part, at = self._place(index)
        return part[at]

    def name(self, index: int) -> str:
        part, at = self._place(index)
        return part.name(at)

    def digest(self, index: int) -> str:
        part, at = self._place(index)
        return part.digest(at)

    def stamp(self, index: int) -> str | None:
        """The part's stamp, None where the part has none (images in memory)."""
        part, at = self._place(index)
        stamp = getattr(part, "stamp", None)
        return stamp(at) if stamp else None


def image_folder(path: Path | str) -> Source:
    """One folder a class, with image files in it; or such folders under train, test and (optionally) val.

    The set and its one domain take the folder's name. Classes are the folders' whole names, sorted; files are sorted
    by name. Hidden files and Thumbs.db are ignored. Refused by name: an empty class folder, a file that is no image
    by its suffix, a folder inside a class folder, two classes that differ only in capitals.
    """
    folder = _existing(path)
    return from_domain_folders(folder.name, {folder.name: folder})


def domain_folder(path: Path | str) -> Source:
    """One folder a domain, each laid out as in :func:`image_folder`.

    Classes are the union over the domains. A class that a domain lacks is allowed (it is label skew) and logged as a
    warning with both names. A missing or misspelt folder therefore shows, and nothing is matched but whole names.
    """
    folder = _existing(path)
    domains = [entry for entry in _entries(folder) if entry.is_dir()]
    if not domains:
        raise FedgeoError(f"{folder}: holds no folders: expected domain/class/images")
    if not any(entry.is_dir() for domain in domains for entry in _entries(domain)):
        raise FedgeoError(
            f"{folder}: no folder in it holds folders: expected domain/class/images; use data=image_folder for "
            "class/images"
        )
    if {entry.name.lower() for entry in domains} <= SPLITS.keys():
        raise FedgeoError(
            f"{folder}: its folders {', '.join(sorted(entry.name for entry in domains))} are parts of one set, not "
            "domains: use data=image_folder, or put them into a folder a domain"
        )
    return from_domain_folders(folder.name, {_normal(entry.name): entry for entry in domains})


def from_domain_folders(name: str, folders: Mapping[str, Path]) -> Source:
    """A source from one folder a domain, each laid out as in :func:`image_folder`, in the mapping's order."""
    rows = [(domain, *row) for domain, folder in folders.items() for row in _class_folders(folder)]
    classes = sorted({label for _, label, _, _ in rows})
    spelt: dict[str, str] = {}
    for label in classes:
        if (other := spelt.setdefault(label.casefold().strip(), label)) != label:
            raise FedgeoError(f"{name}: classes {other!r} and {label!r} differ only in capitals or spaces: rename one")
    for domain, split in sorted({(domain, split) for domain, _, split, _ in rows}):
        held = {label for at, label, part, _ in rows if (at, part) == (domain, split)}
        if lacking := [label for label in classes if label not in held]:
            where = domain if split == UNSET else f"{domain} ({_split_name(split)})"
            log.warning("%s: domain %s has no images of class %s", name, where, ", ".join(lacking))
    sizes = [len(files) for *_, files in rows]
    order = {label: at for at, label in enumerate(classes)}
    places = {domain: at for at, domain in enumerate(folders)}
    return Source(
        name=name,
        classes=tuple(classes),
        domains=tuple(folders),
        labels=np.repeat(np.array([order[label] for _, label, _, _ in rows], np.int64), sizes),
        domain=np.repeat(np.array([places[domain] for domain, *_ in rows], np.int64), sizes),
        split=np.repeat(np.array([split for _, _, split, _ in rows], np.int8), sizes),
        images=FileImages(tuple(file for *_, files in rows for file in files)),
    )


def _split_name(split: int) -> str:
    return next(name for name, value in SPLITS.items() if value == split)


def _normal(name: str) -> str:
    """One spelling for accents, which file systems store in two ways; otherwise the whole name counts."""
    return unicodedata.normalize("NFC", name)


def _existing(path: Path | str) -> Path:
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise FedgeoError(f"{folder}: no such folder: set data.path to the folder of images")
    return folder


def _entries(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as fault:
        raise FedgeoError(f"{folder}: cannot be read ({cause(fault)})") from fault
    return [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _LITTER]


def _class_folders(folder: Path) -> list[tuple[str, int, list[Path]]]:
    """(class, split, files) of every class folder, in order."""
    entries = _entries(folder)
    for entry in entries:
        if entry.is_file() and entry.suffix.lower() in SUFFIXES:
            raise FedgeoError(f"{entry}: an image outside of any class folder: move it into one")
    folders = [entry for entry in entries if entry.is_dir()]
    if not folders:
        raise FedgeoError(f"{folder}: holds no class folders: expected class/images or train/class/images")
    names = {entry.name.lower() for entry in folders}
    if names <= SPLITS.keys() and names & {"train", "training"}:
        return [
            (label, SPLITS[part.name.lower()], files) for part in folders for label, _, files in _plain_folders(part)
        ]
    return _plain_folders(folder)


def _plain_folders(folder: Path) -> list[tuple[str, int, list[Path]]]:
    return [(_normal(entry.name), UNSET, _files(entry)) for entry in _entries(folder) if entry.is_dir()]


def _files(folder: Path) -> list[Path]:
    files = _entries(folder)
    if not files:
        raise FedgeoError(f"{folder}: this class has no images: add some, or move the folder elsewhere")
    for file in files:
        if file.is_dir():
            raise FedgeoError(
                f"{file}: a folder inside class {folder.name!r}, where images were expected: "
                "use data=domain_folder for domain/class/images"
            )
        if file.suffix.lower() not in SUFFIXES:
            raise FedgeoError(f"{file}: not an image by its suffix: convert it to PNG or JPEG, or move it elsewhere")
    return files
