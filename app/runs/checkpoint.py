"""What must survive a process: tensors written atomically, what a client keeps, and where a run stands."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from ..common.errors import FedgeoError
from ..models.base import Weights
from ..models.weights import save_weights


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
