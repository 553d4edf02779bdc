"""The hello phase: hear who the clients are, refuse a mixture by name, and agree on the classes."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict

from .. import messages
from ..common.errors import FedgeoError
from ..config.privacy import RESEARCH, smallest_reported, strictest
from ..config.schema import Privacy
from ..grids.cohort import CohortGrid, named
from ..grids.limits import Limits
from .requests import ask

log = logging.getLogger(__name__)

LONG = 10  # entries from which a list is not told whole
AGREED = {  # what to do where clients do not say the same
    "code": "install the same version of the app on every node",
    "classes": "give every site the same class names",
    "dimension": "use one encoder everywhere",
    "encoder": "use one encoder, with the same weights and preprocessing, everywhere",
    "normalisation": "set encoder.normalise alike everywhere",
    "channels": "set data.channels to a list of those that all have (data.rename, where they are named otherwise)",
    "average reference": "set data.reference=average, or record all against one electrode",
    "sampling rate": "set data.resample to the lower one",
    "bit depth": "set data.bit_depth to the greater one, if the same kind of camera made all, else convert to 8 bits",
}
SOME = ("bit depth",)  # facts of those clients alone that have such data


@dataclass(frozen=True)
class Handshake:
    """What the clients said of themselves: their numbers, domains and counts by class, (K, C).

    facts: what all of them have alike. privacy: the strictest of their policies. bounds: the fewest samples of a class
    that each of them speaks of. silent: clients that are left out, as they may speak of no class. total: how many there
    are, whoever answered. keys: the clients' public keys, where sums are masked. warned: sites whose own logs say
    something of their data that a person should know before believing a figure.
    """

    classes: tuple[str, ...]
    clients: tuple[int, ...]
    domains: tuple[str | None, ...]
    counts: np.ndarray
    facts: Mapping[str, Any] = field(default_factory=dict)
    privacy: Privacy = RESEARCH
    bounds: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    total: int = 0
    keys: Mapping[int, bytes] = field(default_factory=dict)
    warned: tuple[int, ...] = ()

    def held(self, clients: Iterable[int]) -> np.ndarray:
        """The samples of each class that these clients told, int64 (C,)."""
        told = dict(zip(self.clients, self.counts, strict=True))
        return np.array([told[client] for client in clients], dtype=np.int64).sum(axis=0)

    def few(self, clients: Iterable[int]) -> list[int]:
        """The classes of which these clients hold some, but together too few for it to be sent to all."""
        counts = self.held(clients)
        return [int(label) for label in np.flatnonzero((counts > 0) & (counts < self.privacy.min_total))]


def shake_hands(grid: CohortGrid, limits: Limits, code: str, order: Sequence[str] | None = None) -> Handshake:
    """Hear every client. Raises FedgeoError, by client and fact, where they do not go together.

    Of a deployment's sites each has classes of its own: they are agreed here, and a site that did not answer takes no
    further part. code: the server's. order: the sites' classes in the order that is wanted; None: as ``agree`` has it.
    """
    total = max(grid.clients) + 1
    said = {
        reply.metadata.src_node_id: messages.read_text(reply.content)
        for reply in ask(grid, limits, messages.HELLO, RecordDict(), limits.hello_deadline)
    }
    first, reference = next(iter(said.items()))
    if reference["code"] != code:
        raise FedgeoError(f"{named(first, grid.names)} runs another version of the code: {AGREED['code']}")
    sites = grid.agreed is not None
    for client, words in said.items():
        compare(_facts(words, sites), named(client, grid.names), _facts(reference, sites), named(first, grid.names))
    facts = reference["facts"] | _of_some({named(client, grid.names): words["facts"] for client, words in said.items()})
    silent = [client for client, words in said.items() if not any(words["counts"]) and _bound(words) > 1]
    for client in silent:
        del said[client]
        log.warning("%s speaks of no class, as its policy bids it, and takes no part", named(client, grid.names))
    if not said:
        raise FedgeoError("no client has privacy.min_count samples of any class: lower it, or gather more")
    classes = tuple(reference["classes"])
    if sites:
        classes = agree({grid.names[client]: words["classes"] for client, words in said.items()}, order)
        grid.agree(classes, said)
    else:
        grid.keep(said)
    return Handshake(
        classes,
        tuple(said),
        tuple(words["domain"] for words in said.values()),
        np.array([_counts(words, classes) for words in said.values()], dtype=np.int64),
        facts,
        strictest(Privacy(**words["privacy"]) for words in said.values()),
        tuple(_bound(words) for words in said.values()),
        tuple(sorted(silent)),
        total,
        {client: bytes.fromhex(words["mask_key"]) for client, words in said.items() if words.get("mask_key")},
        tuple(client for client, words in said.items() if words.get("warned")),
    )


def _bound(words: dict[str, Any]) -> int:
    """The fewest samples of a class that a client speaks of."""
    return smallest_reported(Privacy(**words["privacy"]))


def _facts(words: dict[str, Any], sites: bool) -> dict[str, Any]:
    """What must be alike. Sites agree on their classes by name instead."""
    return {"code": words["code"], **({} if sites else {"classes": words["classes"]}), **words["facts"]}


def compare(facts: dict[str, Any], client: str, reference: dict[str, Any], first: str) -> None:
    """Refuse a client that differs from the first one in what all must have alike, by the fact's name."""
    for fact in reference | facts:
        if fact in SOME and not (fact in facts and fact in reference):
            continue
        if facts.get(fact) != reference.get(fact):
            mend = AGREED.get(fact, "encode, record and process the data in one way everywhere")
            own, other = facts.get(fact), reference.get(fact)
            mine, theirs = told_apart(own, other), told_apart(other, own)
            raise FedgeoError(f"{client} has {fact} {mine}, {first} has {theirs}: {mend}")


def _of_some(said: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that not every client has, and that those that have one have alike. said: each client's facts."""
    found: dict[str, Any] = {}
    for fact in SOME:
        holders = {client: {fact: facts[fact]} for client, facts in said.items() if fact in facts}
        for client, own in holders.items():
            first = next(iter(holders))
            compare(own, client, holders[first], first)
            found |= own
    return found


def told_apart(value: Any, other: Any) -> str:
    """A fact in words; of two long lists the entry in the first place where they differ."""
    if not isinstance(value, list) or not isinstance(other, list) or max(len(value), len(other)) < LONG:
        return str(value)
    for place, (own, foreign) in enumerate(zip(value, other, strict=False), start=1):
        if own != foreign:
            return f"{own} in place {place}"
    return f"{len(value)} of them"


def agree(said: Mapping[str, Sequence[str]], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """One order of all sites' class names: ``wanted``, or all names that there are, sorted.

    said: each site's classes. A site may lack a class. Where all say the same, in the same order, that order stays.
    Raises FedgeoError for a class that is not among those wanted, and for two that differ in capitals or spaces only.
    """
    holders: dict[str, list[str]] = {}
    for site, classes in said.items():
        for name in classes:
            holders.setdefault(name, []).append(site)
    if wanted is not None:
        if unknown := sorted(holders.keys() - set(wanted)):
            raise FedgeoError(
                f"site {holders[unknown[0]][0]} has class {unknown[0]!r}, which is not in federation.classes "
                f"({', '.join(wanted)}): rename its folder, or add the class"
            )
        return tuple(wanted)
    spelt: dict[str, str] = {}
    for name in sorted(holders):
        if (other := spelt.setdefault(" ".join(name.casefold().split()), name)) != name:
            raise FedgeoError(
                f"site {holders[other][0]} has class {other!r}, site {holders[name][0]} {name!r}: they differ in "
                "capitals or spaces only: rename one"
            )
    for name, sites in holders.items():
        if len(sites) == 1 and len(said) > 1:
            log.warning("class %r is held by site %s alone", name, sites[0])
    orders = {tuple(classes) for classes in said.values()}
    return next(iter(orders)) if len(orders) == 1 else tuple(sorted(holders))


def _counts(words: dict[str, Any], classes: Sequence[str]) -> list[int]:
    """A client's samples of each of ``classes``."""
    counts = dict(zip(words["classes"], words["counts"], strict=True))
    return [counts.get(name, 0) for name in classes]
