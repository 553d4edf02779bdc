"""A client's own part in masked sums: its key, whom it adds masks with, and which masks it has used."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ..common.errors import FedgeoError
from ..common.files import exclusive, private_folder, write_atomic
from ..config.node_config import Refusal
from ..masking.fixed_point import FixedPoint
from ..masking.pairwise import Occasion, mask, public_key
from ..masking.roster import Roster

MASKS = "masks"  # in a node's state


@dataclass(frozen=True)
class Masks:
    """folder: where keys and what was used are kept, for ever. run: the run's id, '' in simulation.

    peers: the public keys of the other sites by name, as a site's administrator wrote them down; None in simulation,
    where all clients are one machine's. A site has one key, whatever its number in a run.
    """

    folder: Path
    run: str = ""
    peers: Mapping[str, str] | None = None

    def key(self, client: int) -> X25519PrivateKey:
        """The client's private key, made at first use."""
        path = self.folder / ("key" if self.peers is not None else f"key-{client}")
        private_folder(self.folder)
        with exclusive(self.folder):
            if not path.exists():
                write_atomic(path, X25519PrivateKey.generate().private_bytes_raw(), durable=True)
            return X25519PrivateKey.from_private_bytes(path.read_bytes())

    def public(self, client: int) -> str:
        """The client's public key, 64 hexadecimal digits."""
        return public_key(self.key(client)).hex()

    def masked(self, client: int, roster: Roster, phase: str, number: int, sums: np.ndarray, bits: int) -> np.ndarray:
        """``sums``, float64 (n,), masked: what ``masking.pairwise.mask`` gives.

        phase, number: what they are of, and in which round. bits: of the fixed point's fraction. Raises Refusal where
        another site's key is not the one that was written down here, or the same masks were used for other numbers.
        """
        self.check_peers(client, roster)
        occasion = Occasion(self.run, phase, number, roster.attempt, roster.keys)
        values = FixedPoint(bits, len(roster.keys)).encode(sums, phase)
        self.use(client, occasion.digest(), hashlib.sha256(values.tobytes()).hexdigest())
        return mask(values, client, self.key(client), occasion)

    def check_peers(self, client: int, roster: Roster) -> None:
        """Refuse a key that a server between two sites could have put in the place of another's."""
        if self.peers is None:
            return
        for other, key in roster.keys.items():
            name = roster.names[other]
            if other != client and self.peers.get(name) != key.hex():
                wrong = "has another public key there" if name in self.peers else "is not among them"
                raise Refusal(
                    f"masked sums are made with the peers in this site's policy file, and site {name} {wrong}: ask its "
                    "administrator, not the server, for the key that scripts/check_site.py shows"
                )

    def use(self, client: int, occasion: bytes, digest: str) -> None:
        """Note that the masks of ``occasion`` are used for the numbers of ``digest``.

        Raises Refusal for others: of two parts under the same masks the server would have the difference.
        """
        path = self.folder / "used" / f"{client}-{occasion.hex()}"
        private_folder(path.parent)
        with exclusive(self.folder):
            if not path.exists():
                write_atomic(path, digest.encode(), durable=True)
            elif path.read_text() != digest:
                raise Refusal("the masks of this sum were used for other numbers before: they are not used again")


def check_asked(roster: Roster | None, wanted: bool) -> None:
    """Refuse a message that asks for plain numbers where sums are masked, or the reverse. wanted: whether they are."""
    if wanted and roster is None:
        raise Refusal("privacy.masked=true: numbers are sent in masked sums alone, and the message names no roster")
    if roster is not None and not wanted:
        raise FedgeoError("the server asks for masked sums, privacy.masked=false")
