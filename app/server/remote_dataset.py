"""What the server knows of a deployment's sites: what their handshake says, and none of their samples."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import FedgeoError
from ..data.federated_dataset import Samples
from ..strategies.handshake import Handshake


@dataclass(frozen=True, eq=False)
class RemoteDataset:
    """The data set of the server in a deployment; client k's domain is ``domains[k]``.

    names: each client's site. facts: what all of them have alike. counts: each site's reported samples by class.
    """

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    names: tuple[str, ...]
    shared: Mapping[str, Any]
    counts: Sequence[Sequence[int]]

    central = ()

    @property
    def inputs(self) -> dict[str, Any]:
        if "dimension" in self.shared:
            return {"dimension": self.shared["dimension"]}
        return {
            "channels": len(self.shared["channels"]),
            "rank": len(self.shared["channels"]) - bool(self.shared["average reference"]),
            "samples": self.shared["samples a trial"],
            "rate": self.shared["sampling rate"],
        }

    def __len__(self) -> int:
        return len(self.names)

    def client_domain(self, client: int) -> str | None:
        return self.domains[client]

    def train(self, client: int) -> Samples:
        raise FedgeoError(f"the training samples of {self.names[client]} do not leave their site")

    def held_out(self, part: str, client: int | None) -> Samples:
        raise FedgeoError(f"the {part} samples of a deployment do not leave their sites")

    def facts(self, client: int) -> dict[str, Any]:
        return dict(self.shared)

    def partition_json(self) -> str:
        sites = [
            {"client": client, "site": name, "domain": domain, "counts": list(counts)}
            for client, (name, domain, counts) in enumerate(zip(self.names, self.domains, self.counts, strict=True))
        ]
        return json.dumps({"classes": list(self.classes), "sites": sites}) + "\n"


def remote_dataset(handshake: Handshake, names: Mapping[int, str]) -> RemoteDataset:
    """What the sites reported. names: of all clients, also of those that did not answer."""
    reported = dict(zip(handshake.clients, zip(handshake.domains, handshake.counts.tolist(), strict=True), strict=True))
    missing = (None, [0] * len(handshake.classes))
    return RemoteDataset(
        handshake.classes,
        tuple(reported.get(client, missing)[0] or name for client, name in sorted(names.items())),
        tuple(name for _, name in sorted(names.items())),
        handshake.facts,
        tuple(reported.get(client, missing)[1] for client in sorted(names)),
    )
