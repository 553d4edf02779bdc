"""What may come from another machine: plain values, each checked by itself. Errors begin with who sent it.

Nothing that is received is used before it has been through here: a fault costs the reply, or the request, never more.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, NoReturn

import numpy as np
import pydantic
from pydantic import Field

from ..algorithms.signature import LARGEST
from ..common.errors import FedgeoError
from ..config.schema import Privacy
from ..geometry.class_geometry import NEGATIVE
from ..geometry.class_statistics import TRIANGLE, ClassStatistics

MOST = 10**9  # samples, rounds, steps
LONGEST = 2**20  # characters of what is said in words
CLASSES = 100_000

Count = Annotated[int, Field(ge=0, le=MOST)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Plain = None | bool | int | float | str


class Statement(pydantic.BaseModel):
    """Something said in words: unknown keys and wrong types are refused."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class HandshakeReply(Statement):
    """Who a client is; see ``Node.hello``."""

    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    classes: Annotated[list[Name], Field(min_length=1, max_length=CLASSES)]
    facts: dict[Name, Plain | list[Plain]]
    domain: Name | None
    counts: list[Count]
    privacy: Privacy

    @pydantic.model_validator(mode="after")
    def agree(self) -> "HandshakeReply":
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must have different names")
        if len(self.counts) != len(self.classes):
            raise ValueError(f"counts must be {len(self.classes)} numbers, one a class")
        least, step = self.privacy.min_count, self.privacy.round_counts
        if any(n and (n % step or n < least // step * step) for n in self.counts):
            raise ValueError("counts do not keep the policy that goes with them")
        for fact in ("dimension", "samples a trial"):
            value = self.facts.get(fact, 1)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
                raise ValueError(f"{fact} must be a number of at least 1")
        rate, channels = self.facts.get("sampling rate", 1.0), self.facts.get("channels", ["one"])
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < MOST:
            raise ValueError("sampling rate must be positive")
        if not isinstance(channels, list) or not channels or not all(isinstance(c, str) for c in channels):
            raise ValueError("channels must be names")
        return self


class Described(Statement):
    """An augmented set's samples by class; see ``Node.describe_augmentation``."""

    total: list[Count]
    unshaped: list[Count]


def words(text: Any, who: str) -> Any:
    """The JSON value of a text that was received."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise FedgeoError(f"{who}: what it says must be a text of at most {LONGEST} characters")

    def refused(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refused)
    except (ValueError, RecursionError) as error:
        raise FedgeoError(f"{who}: what it says cannot be read ({error})") from None


def said(kind: type[Statement], value: Any, who: str) -> Any:
    """``value`` as ``kind``. FedgeoError that names the first fault."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise FedgeoError(f"{who}: {where + ': ' if where else ''}{fault['msg'].replace('Input', 'it')}") from None


def whole(value: Any, who: str, what: str, least: int = 0, most: int = MOST) -> int:
    """A whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise FedgeoError(f"{who}: {what} must be a whole number from {least} to {most}, not {_shown(value)}")
    return value


def real(value: Any, who: str, what: str, least: float = -LARGEST, most: float = LARGEST) -> float:
    """A finite number in a range, both ends included."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not least <= value <= most:
        raise FedgeoError(f"{who}: {what} must be a number from {least:g} to {most:g}, not {_shown(value)}")
    return float(value)


def only(found: Collection[str], wanted: Collection[str], who: str, what: str) -> None:
    """Refuse names that are not exactly ``wanted``."""
    if set(found) != set(wanted):
        odd = sorted(set(found) ^ set(wanted))[0]
        fault = "is missing" if odd in wanted else "is unknown"
        raise FedgeoError(f"{who}: {what} {odd!r} {fault}; expected {', '.join(wanted) or 'none'}")


def array(
    arrays: Mapping[str, np.ndarray], name: str, dtype: str, shape: tuple[int | None, ...], who: str
) -> np.ndarray:
    """An array of this type and shape (None: any length), finite and not absurdly large."""
    value = arrays[name]
    fits = value.ndim == len(shape) and all(n is None or n == m for n, m in zip(shape, value.shape, strict=True))
    if not fits or value.dtype.name != dtype:
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise FedgeoError(f"{who}: {name} must be {dtype} {wanted}, not {value.dtype} {value.shape}")
    bounded(value, name, who)
    return value


def bounded(value: np.ndarray, name: str, who: str) -> None:
    """Refuse values that are not finite or beyond LARGEST."""
    if value.size and not float(np.abs(value).max()) <= LARGEST:
        raise FedgeoError(f"{who}: {name} holds values that are not finite, or above {LARGEST:g}")


def check_statistics(found: ClassStatistics, counts: np.ndarray, dimension: int, exact: bool, who: str) -> None:
    """Refuse class statistics that do not go with what the client said of itself, or are no covariances.

    counts: int (C,), of its hello. exact: whether they are the true ones; a covariance's rank is then below its count.
    """
    if found.dimension != dimension:
        raise FedgeoError(f"{who}: its statistics have dimension {found.dimension}, it said {dimension}")
    check_counts(found.classes, found.counts, counts, who)
    bounded(found.means, "means", who)
    bounded(found.factors, "factors", who)
    bounded(found.triangles, "triangles", who)
    if exact and bool((found.ranks > np.maximum(found.counts - 1, 0)).any()):
        raise FedgeoError(f"{who}: a covariance has more factors than its class has samples to vary")
    for row in np.flatnonzero(found.ranks == TRIANGLE):
        covariance = found.covariance(int(row))
        slack = NEGATIVE * float(np.linalg.norm(covariance))
        try:
            np.linalg.cholesky(covariance + (slack + np.finfo(np.float64).tiny) * np.eye(dimension))
        except np.linalg.LinAlgError:
            raise FedgeoError(
                f"{who}: the covariance of class {found.classes[row]} is not positive semidefinite"
            ) from None


def check_counts(classes: np.ndarray, counts: np.ndarray, told: np.ndarray, who: str) -> None:
    """Refuse classes and counts that are not those of the client's hello, ``told`` (C,)."""
    if len(classes) and int(classes.max()) >= len(told):
        raise FedgeoError(f"{who}: class {classes.max()} is not among the {len(told)} classes")
    found = np.zeros(len(told), dtype=np.int64)
    found[classes] = counts
    if (odd := np.flatnonzero(found != told)).size:
        raise FedgeoError(f"{who}: class {odd[0]} has {found[odd[0]]} samples, it said {told[odd[0]]}")


def _shown(value: Any) -> str:
    return repr(value)[:40]
