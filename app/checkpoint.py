"""What must survive a process: tensors written atomically, and what a client keeps from round to round."""

import os
from pathlib import Path

from safetensors.torch import load_file, save

from app.models.base import Weights


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` so that readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def save_weights(path: Path, weights: Weights, metadata: dict[str, str] | None = None) -> None:
    """Named tensors as safetensors, atomically."""
    write_atomic(path, save({name: value.contiguous() for name, value in weights.items()}, metadata))


class ClientStates:
    """The states of clients by round, as ``<folder>/<client>/<round>.safetensors``; the last two are kept."""

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
        save_weights(self.folder / str(client) / f"{number}.safetensors", state)
        for _, path in self._files(client)[:-2]:
            path.unlink(missing_ok=True)

    def _files(self, client: int) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in (self.folder / str(client)).glob("*.safetensors"))
