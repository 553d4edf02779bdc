"""Who holds what: train, validation and test rows, and the training rows of every client.

Everything here works on row numbers of a ``Source`` and is repeatable: the same source, settings and seed
give the same rows in every process.
"""

from dataclasses import dataclass

import numpy as np

from ..common.errors import FedgeoError
from .source import TEST, TRAIN, VAL, Source

KINDS = ("iid", "dirichlet", "domain", "domain_dirichlet")
_DRAWS = 10  # of a Dirichlet matrix, before the last one is repaired
_SPLIT, _SUBSAMPLE, _PARTITION = (0, 1), (0, 2), (0, 3)  # so that one seed gives each task its own stream


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted, disjoint int64 row numbers of the training, validation and test samples."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, eq=False)
class Partition:
    """The training rows of each client.

    clients: sorted, disjoint int64 row numbers, one array a client. domains: the name of the domain all rows
    of the client come from, None where they come from several. beta: None unless the kind is a Dirichlet one.
    """

    clients: tuple[np.ndarray, ...]
    domains: tuple[str | None, ...]
    kind: str
    seed: int
    beta: float | None

    def __len__(self) -> int:
        return len(self.clients)

    def counts(self, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """Samples of each class at each client, int64 (clients, n_classes); labels (n,) are the source's."""
        return np.stack([np.bincount(labels[rows], minlength=n_classes) for rows in self.clients]).astype(np.int64)


def split(source: Source, *, test_fraction: float, val_fraction: float, seed: int) -> Split:
    """Train, validation and test rows, domain by domain.

    An official test or validation set is kept. Where a domain has none it is drawn at random, the same share
    of every class, from the domain's rows without an official role (TRAIN or UNSET); both fractions are
    shares of those rows. A class that has n of them in the domain gives round(fraction * n), but at least one
    while one is left for training: n = 1 is all training; n = 2 gives one to test (else to validation); from
    n = 3 on every part that is wanted (fraction > 0) gets one, training included.
    Raises FedgeoError for fractions outside [0, 1) or that leave nothing to train on.
    """
    for name, value in (("data.test_fraction", test_fraction), ("data.val_fraction", val_fraction)):
        if not 0 <= value < 1:
            raise FedgeoError(f"{name}={value}: allowed is 0 <= fraction < 1")
    if test_fraction + val_fraction >= 1:
        raise FedgeoError(
            f"data.test_fraction={test_fraction} and data.val_fraction={val_fraction} leave nothing to train "
            "on: allowed is a sum below 1"
        )
    role = source.split.copy()
    pool = np.flatnonzero((role != TEST) & (role != VAL))
    role[pool] = TRAIN
    domain, cells = source.domain[pool], _cells(source)[pool]
    order = _order_within(cells, np.random.default_rng([seed, *_SPLIT]))
    size = np.bincount(cells, minlength=len(source.domains) * len(source.classes))[cells]

    for_test, for_val = (
        _missing(source, TEST)[domain] * test_fraction,
        _missing(source, VAL)[domain] * val_fraction,
    )
    n_test = _share(size, for_test, size - 1 - ((for_val > 0) & (size > 2)))
    n_val = _share(size, for_val, size - 1 - n_test)
    role[pool[order < n_test]] = TEST
    role[pool[(order >= n_test) & (order < n_test + n_val)]] = VAL
    parts = Split(*(np.flatnonzero(role == part) for part in (TRAIN, VAL, TEST)))
    if not len(parts.train):
        raise FedgeoError(f"{source.name}: no training rows: every sample is in its official test or validation set")
    return parts


def subsample(rows: np.ndarray, labels: np.ndarray, domain: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A random share of ``rows``, sorted: max(1, round(fraction * n)) of the n rows of each domain and class.

    rows: int64 (m,), the training rows. labels, domain: int64 (n,), the source's, indexed by ``rows``.
    fraction: 0 < fraction <= 1; the paper takes 0.1 of Digits and 0.3 of Office-Caltech and PACS.
    """
    if not 0 < fraction <= 1:
        raise FedgeoError(f"federation.fraction={fraction}: allowed is 0 < fraction <= 1")
    cells = domain[rows] * (labels[rows].max(initial=0) + 1) + labels[rows]
    size = np.bincount(cells)[cells] if len(rows) else cells
    keep = np.maximum(1, _round(fraction * size))
    return np.sort(rows[_order_within(cells, np.random.default_rng([seed, *_SUBSAMPLE])) < keep])


def partition(
    source: Source,
    rows: np.ndarray,
    *,
    kind: str,
    clients: int | None = None,
    beta: float | None = None,
    min_per_client: int = 1,
    min_per_class: int = 0,
    seed: int,
    clients_per_domain: int = 1,
) -> Partition:
    """The training rows ``rows`` of ``source`` shared out among clients; no row goes to two.

    kind:
      iid: shuffled and dealt in equal parts (sizes differ by one at most).
      dirichlet: label skew. For every class, shares over the clients are drawn from Dir(beta); all rows are
      used.
      domain: one domain a client. With more clients than domains each domain is shared out iid among its own.
      domain_dirichlet: both (Office-Home-LDS). One coefficient for each client and class, those of one class
        drawn from Dir(beta) over all clients (they sum to 1); client k keeps coefficient[k, c] * n of the n
        images of class c in its own domain, rounded to the nearest integer (half to even). The rest is
        unused. Several clients of one domain round the running sum of their coefficients, so that none is
        used twice.
    clients: None is ``clients_per_domain`` for each domain that has rows. For the domain kinds client numbers
      run through the domains in order, and the first domains get one more client where they do not divide
      evenly.
    beta: for the Dirichlet kinds.
    min_per_class: likewise; every client first gets that many rows of each class (that its domain has), then
      the rest is drawn. The GGEUR authors' partition gives one.
    min_per_client: up to ten Dirichlet matrices are drawn until each client has that many rows. If none does,
      the last is repaired: in client order, whoever lacks rows gets them from its domain's unused rows or
      else from the currently largest client, as few classes as possible.

    Raises FedgeoError, naming the key of the configuration and what is allowed, where that cannot be met.
    """
    beta = _check_settings(kind, beta, min_per_client, min_per_class)
    groups = _groups(source, np.sort(rows), kind.startswith("domain"), clients, clients_per_domain)
    for group in groups:
        group.check(min_per_client, min_per_class, source)

    rng = np.random.default_rng([seed, *_PARTITION])
    if beta is not None:
        counts = _draw(groups, beta, min_per_client, min_per_class, rng)
        shares = [_deal(group, table, rng) for group, table in zip(groups, counts, strict=True)]
    else:
        shares = [np.array_split(rng.permutation(group.rows), group.clients) for group in groups]
    held = tuple(np.sort(share) for shares_of_group in shares for share in shares_of_group)
    return Partition(held, domain_names(source, held), kind, seed, beta)


def _check_settings(kind: str, beta: float | None, min_per_client: int, min_per_class: int) -> float | None:
    """beta where the kind uses it, else None."""
    if kind not in KINDS:
        raise FedgeoError(f"federation.partition={kind}: allowed are {', '.join(KINDS)}")
    for key, value, smallest_reported in (("min_per_client", min_per_client, 1), ("min_per_class", min_per_class, 0)):
        if value < smallest_reported:
            raise FedgeoError(f"federation.{key}={value}: allowed are integers from {smallest_reported}")
    if kind.endswith("dirichlet"):
        if beta is None or not 0 < beta < np.inf:
            raise FedgeoError(f"federation.beta={beta}: federation.partition={kind} needs a finite number > 0")
        return float(beta)
    if min_per_class:
        raise FedgeoError(
            f"federation.min_per_class={min_per_class}: federation.partition={kind} allows 0 only, it is for "
            "the Dirichlet kinds"
        )
    return None


@dataclass(frozen=True, eq=False)
class _Group:
    """Rows that some clients share: all, or one domain's. labels belong to rows, sizes (C,) counts them."""

    where: str
    rows: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    clients: int

    def check(self, min_per_client: int, min_per_class: int, source: Source) -> None:
        most = len(self.rows) // min_per_client
        if self.clients > most:
            raise FedgeoError(
                f"federation.clients: {self.clients} clients share the {len(self.rows)} training samples of "
                f"{self.where}, with federation.min_per_client={min_per_client}; allowed are at most {most}"
            )
        held = np.flatnonzero(self.sizes)
        rarest = held[self.sizes[held].argmin()]
        if self.sizes[rarest] < self.clients * min_per_class:
            raise FedgeoError(
                f"federation.min_per_class={min_per_class}: {self.clients} clients share the "
                f"{self.sizes[rarest]} training samples of class {source.classes[rarest]} in {self.where}; "
                f"allowed are at most {self.sizes[rarest] // self.clients}"
            )

    def floor(self, min_per_class: int) -> np.ndarray:
        """What each client holds of each class before the draw, int64 (C,)."""
        return np.where(self.sizes > 0, min_per_class, 0)


def _groups(
    source: Source, rows: np.ndarray, by_domain: bool, clients: int | None, clients_per_domain: int
) -> list[_Group]:
    if not len(rows):
        raise FedgeoError(f"{source.name}: no training samples to share out")
    present = np.unique(source.domain[rows])
    if clients_per_domain < 1 or (clients is not None and clients < 1):
        raise FedgeoError(
            f"federation.clients={clients}, federation.clients_per_domain={clients_per_domain}: allowed are "
            "integers from 1"
        )
    if clients is not None and clients_per_domain != 1 and clients != len(present) * clients_per_domain:
        raise FedgeoError(
            f"federation.clients={clients} and federation.clients_per_domain={clients_per_domain} disagree "
            f"over {len(present)} domains: leave federation.clients null"
        )
    total = len(present) * clients_per_domain if clients is None else clients

    def group(where: str, members: np.ndarray, number: int) -> _Group:
        labels = source.labels[members]
        return _Group(where, members, labels, np.bincount(labels, minlength=len(source.classes)), number)

    if not by_domain:
        return [group(source.name, rows, total)]
    if total < len(present):
        raise FedgeoError(
            f"federation.clients={total}: each client holds one domain, and {source.name} has {len(present)} "
            f"({', '.join(source.domains[d] for d in present)}); allowed are null or at least {len(present)}"
        )
    each, auxiliary = divmod(total, len(present))
    return [
        group(f"domain {source.domains[d]}", rows[source.domain[rows] == d], each + (i < auxiliary))
        for i, d in enumerate(present)
    ]


def _draw(
    groups: list[_Group], beta: float, min_per_client: int, min_per_class: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Rows of each class for each client, int64 (clients, C) a group; one Dirichlet matrix for them all."""
    total, n_classes = sum(group.clients for group in groups), len(groups[0].sizes)
    ends = np.cumsum([group.clients for group in groups])[:-1]
    for _ in range(_DRAWS):
        coefficients = rng.dirichlet(np.full(total, beta), size=n_classes).T
        counts = [
            _cut(block, group.sizes, group.floor(min_per_class))
            for group, block in zip(groups, np.split(coefficients, ends), strict=True)
        ]
        if all(table.sum(1).min() >= min_per_client for table in counts):
            return counts
    for group, table in zip(groups, counts, strict=True):
        _repair(table, group.sizes - table.sum(0), group.floor(min_per_class), min_per_client)
    return counts


def _cut(coefficients: np.ndarray, sizes: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """int64 (clients, C): floor (C,) for every client, then its coefficient (clients, C) times what is left.

    The running sum over the clients is rounded, not each product, so the parts never exceed sizes (C,).
    """
    running = np.minimum(np.cumsum(coefficients, axis=0), 1)
    ends = np.rint(running * (sizes - len(coefficients) * floor)).astype(np.int64)
    return floor + np.diff(ends, axis=0, prepend=0)


def _repair(counts: np.ndarray, spare: np.ndarray, floor: np.ndarray, min_per_client: int) -> None:
    """Moves rows, in place, until each client (a row of counts) has min_per_client. spare (C,): unused rows.

    It ends: while a client is below the minimum and the rows suffice in all, there are spare rows or a client
    above the minimum; that one holds more than the poor one, so more than floor (C,) of some class.
    """
    totals = counts.sum(1)
    for k in np.flatnonzero(totals < min_per_client):
        while (lack := min_per_client - totals[k]) > 0:
            if spare.any():
                c = spare.argmax()
                moved = min(lack, spare[c])
                spare[c] -= moved
            else:
                donor = totals.argmax()
                c = counts[donor].argmax()
                moved = min(lack, counts[donor, c] - floor[c], totals[donor] - min_per_client)
                counts[donor, c] -= moved
                totals[donor] -= moved
            counts[k, c] += moved
            totals[k] += moved


def _deal(group: _Group, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random rows of the group for each client, as many of each class as counts (clients, C) says."""
    shuffled = rng.permutation(len(group.rows))
    by_class = group.rows[shuffled[np.argsort(group.labels[shuffled], kind="stable")]]
    unused = group.sizes - counts.sum(0)
    takers = np.tile(np.arange(group.clients + 1), counts.shape[1])
    owner = np.repeat(takers, np.vstack([counts, unused]).T.ravel())
    by_owner = by_class[np.argsort(owner, kind="stable")]
    return np.split(by_owner, np.cumsum(counts.sum(1)))[: group.clients]


def _cells(source: Source) -> np.ndarray:
    """int64 (n,): one number for each pair of domain and class."""
    return source.domain * len(source.classes) + source.labels


def _order_within(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 (n,): the place of each row in a random order of its cell's rows, from 0."""
    shuffled = rng.permutation(len(cells))
    grouped = shuffled[np.argsort(cells[shuffled], kind="stable")]
    sizes = np.unique(cells, return_counts=True)[1]
    order = np.empty(len(cells), dtype=np.int64)
    order[grouped] = np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order


def _missing(source: Source, part: int) -> np.ndarray:
    """bool (domains,): whether the domain has no official rows for that part."""
    return np.bincount(source.domain[source.split == part], minlength=len(source.domains)) == 0


def _round(value: np.ndarray) -> np.ndarray:
    """To the nearest integer, half up."""
    return np.floor(value + 0.5).astype(np.int64)


def _share(size: np.ndarray, fraction: np.ndarray, most: np.ndarray) -> np.ndarray:
    """round(fraction * size), at least 1 where the fraction is above 0, and never above ``most``."""
    return np.minimum(np.where(fraction > 0, np.maximum(1, _round(fraction * size)), 0), np.maximum(most, 0))


def domain_names(source: Source, clients: tuple[np.ndarray, ...]) -> tuple[str | None, ...]:
    """For each client the name of the domain that all its rows come from, None where they come from several."""
    found = [np.unique(source.domain[rows]) for rows in clients]
    return tuple(source.domains[domains[0]] if len(domains) == 1 else None for domains in found)
