"""Embeddings made beforehand, in one npz file that all processes of a run map into memory and share."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError
from ...common.npy_header import read_header
from ..source import TEST, TRAIN, UNSET, VAL, Blocks, Source

_OFFICIAL = {"train": TRAIN, "val": VAL, "test": TEST}
_ROWS = 4096  # rows checked at a time, so that the check needs little memory
_LOCAL = struct.Struct("<26xHH")  # a member's own header: at its end the lengths of the name and the extra field


def features(path: Path | str) -> Source:
    """Embeddings with labels from an npz file, as float16 or float32 (n, p), not normalised.

    Keys: ``<domain>_X`` (n, p) and ``<domain>_y`` (n,) for every domain, optionally ``<domain>_split`` (train, val,
    test, or 0, 1, 2, -1 for unset) and ``classes`` (names); or ``train_X, train_y, test_X, test_y`` (and ``val_``),
    which is one domain with the official split, named after the file. Without ``classes`` the classes are named by the
    labels that occur. float64 is cast to float32; the features stay float16 where all of them are. What numpy.savez
    wrote stays in the file, of which only the rows that are asked for are copied: replace such a file as a whole, by
    another of its name, never in place while a run reads it.

    Raises FedgeoError naming the domain, and the row where it applies, for: features that are not finite numbers,
    differing dimensions, labels that are not whole numbers within the classes, keys without their partner.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FedgeoError(f"{file}: no such file: set data.path to an npz file with <domain>_X and <domain>_y")
    if not zipfile.is_zipfile(file):
        raise FedgeoError(f"{file}: not a readable npz file (text, a single array, or torn): write it with numpy.savez")
    try:
        with np.load(file, allow_pickle=False) as archive:
            return _read(file, archive)
    except FedgeoError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError) as fault:
        raise FedgeoError(f"{file}: not a readable npz file of plain arrays ({fault}): write it anew") from fault


def _read(file: Path, archive: np.lib.npyio.NpzFile) -> Source:
    parts = [key.removesuffix("_X") for key in archive.files if key.endswith("_X")]
    if not parts:
        raise FedgeoError(f"{file}: no embeddings: expected keys <domain>_X and <domain>_y, found {archive.files}")
    for part in {key[:-2] for key in archive.files if key.endswith(("_X", "_y"))}:
        for key in (f"{part}_X", f"{part}_y"):
            if key not in archive.files:
                raise FedgeoError(f"{file}: domain {part!r} has no {key}: add it, or leave the other out")
    official = set(parts) <= _OFFICIAL.keys()
    if not official and (mixed := sorted(set(parts) & _OFFICIAL.keys())):
        others = sorted(set(parts) - set(mixed))
        raise FedgeoError(f"{file}: {mixed} are names of splits and {others} of domains: use one kind")

    embeddings = _features(file, archive, parts)
    sizes = [len(block) for block in embeddings.blocks]
    values = {part: _labels(file, part, archive[f"{part}_y"], n) for part, n in zip(parts, sizes, strict=True)}
    classes, labels = _classes(file, archive, values)
    if official:
        split = np.repeat(np.array([_OFFICIAL[part] for part in parts], np.int8), sizes)
        domains: tuple[str, ...] = (file.stem,)
        domain = np.zeros(len(labels), np.int64)
    else:
        split = np.concatenate([_split(file, archive, part, len(values[part])) for part in parts])
        domains = tuple(parts)
        domain = np.repeat(np.arange(len(parts)), sizes)
    return Source(
        name=file.stem, classes=classes, domains=domains, labels=labels, domain=domain, split=split, features=embeddings
    )


def _features(file: Path, archive: np.lib.npyio.NpzFile, parts: list[str]) -> Blocks:
    """The domains' embeddings, none of them read yet beyond a check."""
    dimension = None
    blocks = []
    members = archive.zip
    assert members is not None  # as long as the archive is open
    for part in parts:
        entry = members.getinfo(f"{part}_X.npy")
        with members.open(entry) as member:
            shape, columns_first, dtype = read_header(member)
            if dtype.kind != "f" or len(shape) != 2 or shape[1] == 0:
                raise FedgeoError(f"{file}: {part}_X must be floating point of shape (n, p), not {dtype} {shape}")
            if shape[0] == 0:
                raise FedgeoError(f"{file}: domain {part!r} holds no samples: add some, or leave the domain out")
            dimension = dimension or shape[1]
            if shape[1] != dimension:
                raise FedgeoError(
                    f"{file}: {part}_X has dimension {shape[1]}, {parts[0]}_X {dimension}: use one encoder"
                )
            if entry.compress_type == zipfile.ZIP_STORED and not columns_first and dtype.itemsize <= 4:
                while member.read(2**20):  # to the end, where the checksum is compared
                    pass
                block = _mapped(file, entry)
            else:
                block = archive[f"{part}_X"]
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is refused below
            block = block if block.dtype.itemsize <= 4 else block.astype(np.float32)
        for row in _not_finite(block):
            raise FedgeoError(f"{file}: domain {part!r}, row {row}: NaN or infinite features: encode that sample again")
        blocks.append(block)
    return Blocks(blocks)


def _mapped(file: Path, member: zipfile.ZipInfo) -> np.ndarray:
    """The array of a member that is stored uncompressed, where it lies in the file."""
    with file.open("rb") as raw:
        raw.seek(member.header_offset)
        name, auxiliary = _LOCAL.unpack(raw.read(_LOCAL.size))
        raw.seek(name + auxiliary, 1)
        shape, _, dtype = read_header(raw)
        return np.memmap(file, dtype, "r", raw.tell(), shape)


def _not_finite(block: np.ndarray) -> Iterator[int]:
    for start in range(0, len(block), _ROWS):
        bad = ~np.isfinite(block[start : start + _ROWS]).all(axis=1)
        yield from (start + int(row) for row in np.flatnonzero(bad))


def _labels(file: Path, part: str, values: np.ndarray, n: int) -> np.ndarray:
    if values.shape != (n,):
        raise FedgeoError(f"{file}: {part}_y has shape {values.shape}, expected ({n},), one label a row of {part}_X")
    if values.dtype.kind not in "iu":
        raise FedgeoError(f"{file}: {part}_y must hold whole numbers, not {values.dtype}")
    if (negative := np.flatnonzero(values < 0)).size:
        raise FedgeoError(f"{file}: domain {part!r}, row {negative[0]}: label {values[negative[0]]} is negative")
    return values.astype(np.int64)


def _classes(
    file: Path, archive: np.lib.npyio.NpzFile, values: dict[str, np.ndarray]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names, and the labels of all domains as indices into them."""
    every = np.concatenate(list(values.values()))
    if "classes" not in archive.files:
        present, labels = np.unique(every, return_inverse=True)
        return tuple(str(value) for value in present), labels.astype(np.int64)
    names = tuple(str(name) for name in archive["classes"])
    if len(set(names)) != len(names):
        raise FedgeoError(f"{file}: classes names a class twice: {sorted(n for n in set(names) if names.count(n) > 1)}")
    for part, labels in values.items():
        if (beyond := np.flatnonzero(labels >= len(names))).size:
            row = beyond[0]
            raise FedgeoError(
                f"{file}: domain {part!r}, row {row}: label {labels[row]}, but there are {len(names)} classes (0 to "
                f"{len(names) - 1})"
            )
    return names, every


def _split(file: Path, archive: np.lib.npyio.NpzFile, part: str, n: int) -> np.ndarray:
    key = f"{part}_split"
    if key not in archive.files:
        return np.full(n, UNSET, np.int8)
    values = archive[key]
    known: dict[str | int, int] = dict(_OFFICIAL) | {value: value for value in (TRAIN, VAL, TEST, UNSET)}
    if values.shape != (n,):
        raise FedgeoError(f"{file}: {key} has shape {values.shape}, expected ({n},)")
    if unknown := sorted({str(value) for value in values.tolist() if value not in known}):
        raise FedgeoError(f"{file}: {key} holds {unknown}: expected train, val, test or 0, 1, 2, -1")
    return np.array([known[value] for value in values.tolist()], np.int8)
