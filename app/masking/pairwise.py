"""Pairwise masks: each two clients add and subtract the same stream, so that only the sum over all of them is left.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4.0.1,
without its recovery: where one client is missing, the sum is not opened. The ciphers are those of the ``cryptography``
package: X25519 between two clients' keys, HKDF-SHA256 to a key of this one sum, ChaCha20 as the stream.

What this does not do: tell whether a client's numbers are true, or keep from the server what the sum itself says.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..common.errors import FedgeoError

FEWEST = 3  # of two clients' sum each knows the other's part
BLOCK = 4096  # values between two control words
CONTROL = np.uint64(0x9E3779B97F4A7C15)  # any constant; odd, so that K times it differs for all K below 2^64
KEY = 32  # bytes of a public key


@dataclass(frozen=True)
class Occasion:
    """What one sum is of. No two sums may have the same: a stream that is used twice shows a difference.

    run, phase, attempt: words, the last one another in every process that serves the run. round: its number, from 0.
    roster: each client's public key, X25519's 32 bytes.
    """

    run: str
    phase: str
    round: int
    attempt: str
    roster: Mapping[int, bytes]

    def __post_init__(self) -> None:
        if len(self.roster) < FEWEST:
            raise FedgeoError(
                f"privacy.masked: a sum of {len(self.roster)} clients hides nothing from who knows its own part; "
                f"{FEWEST} must take part"
            )
        if any(len(key) != KEY for key in self.roster.values()) or len(set(self.roster.values())) < len(self.roster):
            raise FedgeoError(f"privacy.masked: every client must have a public key of its own, of {KEY} bytes")

    def digest(self) -> bytes:
        """sha256 of all of it."""
        roster = [[client, key.hex()] for client, key in sorted(self.roster.items())]
        words = [self.run, self.phase, self.round, self.attempt, roster]
        return hashlib.sha256(json.dumps(words).encode()).digest()


def public_key(private: X25519PrivateKey) -> bytes:
    """The 32 bytes that others know a client's key by."""
    return private.public_key().public_bytes_raw()


def mask(values: np.ndarray, client: int, private: X25519PrivateKey, occasion: Occasion) -> np.ndarray:
    """What ``client`` sends: its values, control words after every block, and the masks of all pairs that it is in.

        y_k = x_k + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)  modulo 2^64

    values: uint64 (n,). Returns uint64 (n + ceil(n / BLOCK),), uniform to whoever lacks a key of one of its
    pairs. Raises FedgeoError where the roster has another key for ``client``, or another's that agrees on nothing.
    """
    own = public_key(private)
    if occasion.roster.get(client) != own:
        raise FedgeoError(f"client {client}: the roster has another public key for it than its own")
    masked, digest = with_controls(values), occasion.digest()
    for other, key in occasion.roster.items():
        if other == client:
            continue
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError as error:
            raise FedgeoError(f"the public key of client {other} is none that keys can be agreed with") from error
        pair = f"{min(client, other)} {max(client, other)}".encode()
        derived = HKDF(SHA256(), 32, digest, b"fedgeo masked sum " + pair).derive(secret)
        noise = stream(derived, len(masked))
        masked = masked + noise if other > client else masked - noise
    return masked


def stream(key: bytes, length: int) -> np.ndarray:
    """ChaCha20's key stream as uint64 (length,), little-endian. The key is used for this one stream."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def masked_length(length: int) -> int:
    """How many words ``mask`` makes of ``length`` values."""
    return length + -(-length // BLOCK)


def with_controls(values: np.ndarray) -> np.ndarray:
    """uint64 (n + ceil(n / BLOCK),): a control word after every block of BLOCK values, and after the last one."""
    ends = np.minimum(np.arange(BLOCK, len(values) + BLOCK, BLOCK), len(values))
    return np.insert(np.ascontiguousarray(values, dtype=np.uint64), ends, CONTROL)


def open_sum(parts: Mapping[int, np.ndarray], length: int, occasion: Occasion) -> np.ndarray:
    """The sum modulo 2^64 of all clients' values, uint64 (length,), from what ``mask`` gave each.

    Raises FedgeoError where a client of the roster is missing, one has sent another length, or the masks do not cancel:
    then nothing is known of any value.
    """
    if missing := sorted(occasion.roster.keys() ^ parts.keys()):
        raise FedgeoError(
            f"privacy.masked: client {missing[0]} is not in both the roster and the sum, which cannot be opened "
            "without every client's part"
        )
    expected = masked_length(length)
    for client, part in parts.items():
        if part.dtype != np.uint64 or part.shape != (expected,):
            raise FedgeoError(
                f"client {client}: a masked part must be uint64 ({expected},), not {part.dtype} {part.shape}"
            )
    total = np.zeros(expected, dtype=np.uint64)
    for part in parts.values():
        total += part
    controls = np.zeros(expected, dtype=bool)
    ends = np.minimum(np.arange(BLOCK, length + BLOCK, BLOCK), length)
    controls[ends + np.arange(len(ends))] = True
    if (total[controls] != np.full(len(parts), CONTROL).sum(dtype=np.uint64)).any():
        raise FedgeoError(
            "privacy.masked: the masks do not cancel: a client has used another roster, key or attempt, or its part "
            "was altered on the way; nothing was opened"
        )
    return total[~controls]
