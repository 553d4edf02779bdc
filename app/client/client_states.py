"""What clients keep from round to round, as files."""

from pathlib import Path

from safetensors.torch import load_file

from ..common.files import private_folder
from ..models.base import Weights
from ..models.weights import save_weights


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
        private_folder(self.folder)
        save_weights(self.folder / str(client) / f"{number}.safetensors", state, durable=True)
        for _, path in self._files(client)[:-2]:
            path.unlink(missing_ok=True)

    def _files(self, client: int) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in (self.folder / str(client)).glob("*.safetensors"))
