"""Masked sums: exact, hidden in every part alone, and opened only whole."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chisquare

from app.common.errors import FedgeoError
from app.masking.fixed_point import FixedPoint
from app.masking.pairwise import BLOCK, CONTROL, Occasion, mask, open_sum, public_key, stream, with_controls

KEYS = {client: X25519PrivateKey.from_private_bytes(bytes([client + 1] * 32)) for client in (0, 2, 5, 7)}
OCCASION = Occasion("run", "statistics", 0, "a", {client: public_key(key) for client, key in KEYS.items()})
FIXED = FixedPoint(bits=36, terms=4)


def parts(values: dict[int, np.ndarray], occasion: Occasion = OCCASION) -> dict[int, np.ndarray]:
    return {client: mask(value, client, KEYS[client], occasion) for client, value in values.items()}


@given(st.data(), st.integers(1, 12))
def test_a_sum_is_that_of_the_fixed_point_numbers(data: st.DataObject, length: int) -> None:
    numbers = st.floats(-FIXED.bound, FIXED.bound)
    x = {client: data.draw(arrays(np.float64, length, elements=numbers)) for client in KEYS}
    encoded = {client: FIXED.encode(value) for client, value in x.items()}
    total = open_sum(parts(encoded), length, OCCASION)
    plain = sum(int(v) for v in np.rint(np.ldexp(np.array([value[0] for value in x.values()]), 36)))
    assert int(total.view(np.int64)[0]) == plain  # Python's integers do not wrap around
    assert np.array_equal(total, np.sum(list(encoded.values()), axis=0, dtype=np.uint64))
    exact = np.sum(list(x.values()), axis=0)
    assert np.allclose(FIXED.decode(total), exact, rtol=1e-12, atol=4 * 2.0**-37 + 1e-12)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 17])
def test_blocks_of_every_length(length: int) -> None:
    rng = np.random.default_rng(length)
    values = {client: rng.integers(0, 2**64, length, dtype=np.uint64) for client in KEYS}
    assert with_controls(values[0]).tolist().count(int(CONTROL)) == -(-length // BLOCK)
    total = open_sum(parts(values), length, OCCASION)
    assert np.array_equal(total, np.sum(list(values.values()), axis=0, dtype=np.uint64))


def test_the_stream_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vector 1: the key stream of a key and a nonce of zeros from block 0."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream(bytes(32), 4).astype("<u8").tobytes().hex() == expected


def test_a_part_alone_is_uniform() -> None:
    """Of zeros and of ones alike: all bytes are as frequent, and the parts of two occasions share nothing."""
    for value in (np.zeros(60_000), np.ones(60_000)):
        part = mask(FIXED.encode(value), 2, KEYS[2], OCCASION)
        assert chisquare(np.bincount(part.view(np.uint8), minlength=256)).pvalue > 1e-4
    again = mask(FIXED.encode(np.ones(60_000)), 2, KEYS[2], replace(OCCASION, attempt="b"))
    assert chisquare(np.bincount((again - part).view(np.uint8), minlength=256)).pvalue > 1e-4


def test_all_but_one_together_learn_the_sum_alone() -> None:
    """Two of three other clients' parts added: still uniform, for the pair with the one that is left masks it."""
    given = parts({client: FIXED.encode(np.ones(60_000)) for client in KEYS})
    seen = given[0] + given[2] + given[5]
    assert chisquare(np.bincount(seen.view(np.uint8), minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("other", [{"run": "b"}, {"phase": "train"}, {"round": 1}, {"attempt": "b"}])
def test_a_part_of_another_occasion_opens_nothing(other: dict[str, object]) -> None:
    given = parts({client: FIXED.encode(np.arange(5.0)) for client in KEYS})
    given[5] = mask(FIXED.encode(np.arange(5.0)), 5, KEYS[5], replace(OCCASION, **other))  # type: ignore[arg-type]
    with pytest.raises(FedgeoError, match="do not cancel"):
        open_sum(given, 5, OCCASION)


def test_another_roster_or_key_opens_nothing() -> None:
    values = {client: FIXED.encode(np.arange(5.0)) for client in KEYS}
    stranger = X25519PrivateKey.from_private_bytes(bytes([9] * 32))
    told = replace(OCCASION, roster={**OCCASION.roster, 7: public_key(stranger)})
    given = parts(values) | {0: mask(values[0], 0, KEYS[0], told)}
    with pytest.raises(FedgeoError, match="do not cancel"):
        open_sum(given, 5, OCCASION)
    with pytest.raises(FedgeoError, match="another public key for it"):
        mask(values[7], 7, KEYS[7], told)
    zero = replace(OCCASION, roster={**OCCASION.roster, 7: bytes(32)})
    with pytest.raises(FedgeoError, match="public key of client 7"):
        mask(values[0], 0, KEYS[0], zero)


@pytest.mark.parametrize(
    "roster",
    [
        {0: bytes([1] * 32), 1: bytes([2] * 32)},
        {k: bytes([1] * 32) for k in range(3)},
        dict.fromkeys(range(3), b"short"),
    ],
)
def test_rosters_that_hide_nothing(roster: dict[int, bytes]) -> None:
    with pytest.raises(FedgeoError, match=r"privacy\.masked"):
        Occasion("run", "statistics", 0, "a", roster)


@given(st.integers(0, 2**32 - 1))
def test_no_fault_gives_a_wrong_sum(seed: int) -> None:
    """A part that is lost, replayed from another attempt, altered, cut, or doubled: refused, or it was no fault."""
    rng = np.random.default_rng(seed)
    values = {client: rng.integers(0, 2**64, 3, dtype=np.uint64) for client in KEYS}
    given, victim = parts(values), int(rng.choice(list(KEYS)))
    before = given[victim]
    fault = rng.integers(5)
    if fault == 0:
        del given[victim]
    elif fault == 1:
        given[victim] = mask(values[victim], victim, KEYS[victim], replace(OCCASION, attempt="b"))
    elif fault == 2:
        given[victim] = before[:-1]
    elif fault == 3:
        given[victim] = given[int(rng.choice([client for client in KEYS if client != victim]))]
    else:
        given[victim] = rng.integers(0, 2**64, len(before), dtype=np.uint64)
    with pytest.raises(FedgeoError):
        open_sum(given, 3, OCCASION)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**27])
def test_numbers_that_do_not_fit(value: float) -> None:
    with pytest.raises(FedgeoError, match="client 3's sums"):
        FIXED.encode(np.array([0.0, value]), "client 3's sums")


@given(st.integers(0, 50), st.integers(1, 1000), st.integers(0, 2**32 - 1))
def test_the_bound_keeps_sums_from_wrapping(bits: int, terms: int, seed: int) -> None:
    fixed = FixedPoint(bits, terms) if 2 ** (63 - bits) > terms else FixedPoint(0, terms)
    largest = int(fixed.encode(np.array([fixed.bound])).view(np.int64)[0])
    assert terms * largest < 2**63
    x = np.random.default_rng(seed).uniform(-1, 1, 9) * fixed.bound
    assert np.allclose(fixed.decode(fixed.encode(x)), x, rtol=1e-15, atol=2.0 ** -(fixed.bits + 1))
