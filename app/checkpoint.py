"""What must survive a process: tensors written atomically, what a client keeps, and where a run stands."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from app.errors import FedgeoError
from app.models.base import Weights


def write_atomic(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write ``content`` so that readers see the old file or the new one, never a part.

    durable: it also outlives a power cut from the moment of return, at the cost of waiting for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # a full disk is not filled further
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save_weights(
    path: Path, weights: Weights, metadata: dict[str, str] | None = None, *, durable: bool = False
) -> None:
    """Named tensors as safetensors, atomically."""
    content = save({name: value.contiguous() for name, value in weights.items()}, metadata)
    write_atomic(path, content, durable=durable)


def prefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors with ``prefix`` before each name."""
    return {prefix + name: value for name, value in weights.items()}


def unprefixed(weights: Weights, prefix: str) -> Weights:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


class ClientStates:
    """The states of clients by round, as ``<folder>/<client>/<round>.safetensors``; the last two are kept.

    Two, because a node can be one round ahead of the server's last checkpoint, never more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: int, before: int) -> Weights:
        """The newest state from a round before ``before``, {} where there is none; newer ones are discarded."""
        found: Weights = {}
        for number, path in self._files(client):
            if number >= before:
                path.unlink(missing_ok=True)
            else:
                found = load_file(path)
        return found

    def save(self, client: int, number: int, state: Weights) -> None:
        """Keep ``state`` as that of round ``number``; an empty state leaves no file."""
        if not state:
            return
        save_weights(self.folder / str(client) / f"{number}.safetensors", state, durable=True)
        for _, path in self._files(client)[:-2]:
            path.unlink(missing_ok=True)

    def _files(self, client: int) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in (self.folder / str(client)).glob("*.safetensors"))


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a run stands after ``round`` rounds, 0 for its phases before the first.

    tensors: by purpose and name. facts: plain JSON values; floats come back to the bit.
    """

    round: int
    tensors: Mapping[str, Weights]
    facts: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write one file, so that its parts always belong to one round."""
        named = {f"{of}/{name}": value for of, group in self.tensors.items() for name, value in group.items()}
        described = json.dumps({"round": self.round, "facts": self.facts})
        # clones, for a tensor may serve two purposes, which safetensors refuses
        copies = {name: value.detach().clone() for name, value in named.items()}
        save_weights(path, copies, {"checkpoint": described}, durable=True)

    @staticmethod
    def load(path: Path) -> "Checkpoint | None":
        """The checkpoint in ``path``, None where there is none. Raises FedgeoError for a file that is none."""
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                described = json.loads(file.metadata()["checkpoint"])
            tensors: dict[str, Weights] = {}
            for key, value in load_file(path).items():
                of, _, name = key.partition("/")
                tensors.setdefault(of, {})[name] = value
            return Checkpoint(int(described["round"]), tensors, dict(described["facts"]))
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise FedgeoError(f"{path} is no checkpoint ({type(error).__name__}): the run cannot go on") from None

    def group(self, of: str) -> Weights:
        """The tensors of one purpose, {} where there are none."""
        return dict(self.tensors.get(of, {}))
