"""What may be shared: the stricter of a run's policy and a site's own, and what that leaves of counts and ranks.

A class of fewer than ``min_count`` samples is left out of all that a client does, training and evaluation too: of one
sample the mean IS the sample, two are mean +- root eigenvalue times eigenvector, and the change of a linear layer tells
of a class that has one. The shape of few samples spans them, so that ``min_total`` and ``rank_share`` bound what is
sent to all clients. app/data/policy_view.py is where samples are left out; docs/privacy.md says what remains.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from torch import Tensor

from ..common.code import CONF
from ..common.errors import FedgeoError
from .schema import Privacy

RESEARCH = Privacy(
    policy="research",
    min_count=1,
    min_total=1,
    rank_share=1.0,
    prototypes=True,
    round_counts=1,
    masked=False,
    peers=None,
    stock=True,
    releases=None,
    encoders=None,
    targets=None,
    max_hidden=None,
    max_epochs=None,
    max_rounds=None,
    max_size=None,
    min_batch=1,
)
SITE = CONF / "privacy" / "site.yaml"  # what holds at a site that says nothing else


def effective(run: Privacy, policy: Path | None) -> Privacy:
    """What holds at a site: the stricter of the run's policy and the site's own, site.yaml's where it has no file.

    Where the run is the stricter one its bounds act on counts as the site would tell them anyway, in whole steps of the
    site's ``round_counts``: of runs with min_count 11, 12, 13 ... or steps of 11, 12, 13 ... an exact count would show.
    """
    own = read_policy(policy)
    both = stricter(run, own)
    step = _multiple(both.round_counts, own.round_counts)
    least = both.min_count if both.min_count == own.min_count else _multiple(both.min_count, step)
    # whose keys are whose is the administrator's to say
    return both.model_copy(update={"round_counts": step, "min_count": least, "peers": own.peers})


def _multiple(number: int, step: int) -> int:
    """The multiple of ``step`` from ``number`` on."""
    return -(-number // step) * step


def read_policy(path: Path | None) -> Privacy:
    """A site's policy file: yaml with keys of conf/privacy/site.yaml, whose values hold for keys it leaves out.

    Raises FedgeoError with one line that names the key.
    """
    values: dict[str, Any] = _yaml(SITE)
    if path is None:
        return Privacy(**values)
    given = _yaml(path)
    if unknown := sorted(given.keys() - values.keys()):
        raise FedgeoError(f"policy {path.name}: {unknown[0]}: no such key; there are {', '.join(values)}")
    try:
        return Privacy(**(values | given))
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        message = fault["msg"].replace("Input should be ", "must be ")
        raise FedgeoError(f"policy {path.name}: {fault['loc'][0]}={fault['input']}: {message}") from None


def _yaml(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf  # hydra's, which the pure packages that need a policy do without

    try:
        found = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # whatever a yaml parser makes of it
        raise FedgeoError(f"policy {path.name}: cannot be read ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise FedgeoError(f"policy {path.name}: must be keys and values, as in conf/privacy/site.yaml")
    return {str(key): value for key, value in found.items()}


def stricter(a: Privacy, b: Privacy) -> Privacy:
    """Of every bound the one that lets less through."""
    return Privacy(
        policy="site" if "site" in (a.policy, b.policy) else "research",
        min_count=max(a.min_count, b.min_count),
        min_total=max(a.min_total, b.min_total),
        rank_share=min(a.rank_share, b.rank_share),
        prototypes=a.prototypes and b.prototypes,
        round_counts=max(a.round_counts, b.round_counts),
        masked=a.masked or b.masked,
        peers=None,  # a site's own
        stock=a.stock and b.stock,
        releases=_least(a.releases, b.releases),
        encoders=_common(a.encoders, b.encoders),
        targets=_common(a.targets, b.targets),
        max_hidden=_least(a.max_hidden, b.max_hidden),
        max_epochs=_least(a.max_epochs, b.max_epochs),
        max_rounds=_least(a.max_rounds, b.max_rounds),
        max_size=_least(a.max_size, b.max_size),
        min_batch=max(a.min_batch, b.min_batch),
    )


def _least(a: int | None, b: int | None) -> int | None:
    """The lower of two bounds, None being none."""
    return min((bound for bound in (a, b) if bound is not None), default=None)


def _common(a: list[str] | None, b: list[str] | None) -> list[str] | None:
    """The names that both lists have, None being all names."""
    if a is None or b is None:
        return b if a is None else a
    return [name for name in a if name in b]


def strictest(policies: Iterable[Privacy]) -> Privacy:
    """The stricter of all; there must be one."""
    return reduce(stricter, policies)


def smallest_reported(privacy: Privacy) -> int:
    """The fewest samples that are spoken of: fewer than ``round_counts`` would be told as none, or as too many."""
    return max(privacy.min_count, privacy.round_counts)


def scoring_step(privacy: Privacy) -> int:
    """What the samples that a client is scored on, right and wrong ones, are told in multiples of."""
    return _multiple(smallest_reported(privacy), privacy.round_counts)


def shared_classes(counts: np.ndarray, privacy: Privacy) -> np.ndarray:
    """bool (C,): the classes that a client with these counts may speak of."""
    return np.asarray(counts >= smallest_reported(privacy))


def rounded_counts(counts: np.ndarray, privacy: Privacy) -> np.ndarray:
    """The counts as they are told, int64 (C,): rounded, and 0 where a class is left out or absent alike."""
    return np.where(shared_classes(counts, privacy), counts // privacy.round_counts * privacy.round_counts, 0)


def rounded(number: int, privacy: Privacy) -> int:
    """A count as it is told: the multiple of ``round_counts`` below it, so that bounds on sums of them hold."""
    return number // privacy.round_counts * privacy.round_counts


def rounded_sums(sums: Mapping[str, Tensor], samples: int, privacy: Privacy) -> dict[str, Tensor]:
    """Sums over ``samples`` trials as if they were as many as are told, which changes no mean.

    Where there are ``counts``, float (C,), all sums have a row a class.
    """
    share = rounded(samples, privacy) / samples
    if "counts" not in sums:
        return {name: value * share for name, value in sums.items()}
    counts = sums["counts"]
    kept = torch.div(counts, privacy.round_counts, rounding_mode="floor") * privacy.round_counts
    shares = kept / counts.clamp(min=1)
    return {name: value * shares.reshape(-1, *[1] * (value.ndim - 1)) for name, value in sums.items()}


def check_received(counts: np.ndarray, ranks: Sequence[int], prototypes: np.ndarray, privacy: Privacy) -> None:
    """Refuse what a server sent to all clients although it must not: the site's policy was not kept elsewhere.

    counts, ranks: of each class that there is a shape of.
    """
    if (counts < privacy.min_total).any():
        raise FedgeoError(
            f"the server sent the shape of a class of {counts.min()} samples, privacy.min_total={privacy.min_total}"
        )
    if any(rank > max(1, int(privacy.rank_share * n)) for rank, n in zip(ranks, counts, strict=True)):
        raise FedgeoError(f"the server sent a shape whose rank is above privacy.rank_share={privacy.rank_share}")
    if len(prototypes) and not privacy.prototypes:
        raise FedgeoError("the server sent clients' class means, which privacy.prototypes=false forbids")


def check_mixing(privacy: Privacy) -> None:
    """Refuse FedMix, which sends clients' batch means to all others, where class means may not be sent either."""
    if not privacy.prototypes:
        raise FedgeoError(
            "augmentation=fedmix sends means of every client's samples to all others, which privacy.prototypes=false "
            "forbids: set privacy.prototypes=true, and at every site the same in its policy file"
        )


def check_prototypes(step2: bool, privacy: Privacy) -> None:
    """Refuse a run whose clients would be sent each other's class means where that is not allowed."""
    if step2 and not privacy.prototypes:
        raise FedgeoError(
            "augmentation.step2=true sends every client's class means to all others, which privacy.prototypes=false "
            "forbids: set privacy.prototypes=true, and at every site the same in its policy file, or leave step2 out"
        )
