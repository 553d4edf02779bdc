"""What may come from another machine: plain values, each checked by itself. Errors begin with who sent it.

Nothing that is received is used before it has been through here: a fault costs the reply, or the request, never more.
"""

import json
import math
from typing import Annotated, Any, Literal, NoReturn

import pydantic
from pydantic import Field

from ..common.errors import FedgeoError
from ..common.received import LARGEST, MOST
from ..config.schema import Privacy

LONGEST = 2**20  # characters of what is said in words
CLASSES = 100_000

Count = Annotated[int, Field(ge=0, le=MOST)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Share = Annotated[float, Field(ge=-1, le=1)]
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
    warned: bool = False
    mask_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @pydantic.model_validator(mode="after")
    def agree(self) -> "HandshakeReply":
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must have different names")
        if len(self.counts) != len(self.classes):
            raise ValueError(f"counts must be {len(self.classes)} numbers, one a class")
        if (self.mask_key is not None) != self.privacy.masked:
            raise ValueError("mask_key goes with privacy.masked=true")
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
    """An augmented set's samples by class; see ``TrainingSets.describe``."""

    total: list[Count]
    unshaped: list[Count]


class LessAlone(Statement):
    """What a model gains over what a client has alone; figures only where counts are told exactly."""

    verdict: Literal["better", "worse", "unclear"]
    difference: Share | None = None
    low: Share | None = None
    high: Share | None = None
    p: Annotated[float, Field(ge=0, le=1)] | None = None


class JoiningReply(Statement):
    """What came of joining at a client; see ``client/joining.py``."""

    training: Count
    tested: Count
    alone: Name
    mode: Name | None
    right: dict[Literal["alone", "joined", "personal"], Count]
    f1: dict[Literal["alone", "joined", "personal"], Annotated[float, Field(ge=0, le=1)]]
    less_alone: dict[Literal["joined", "personal"], LessAlone]

    @pydantic.model_validator(mode="after")
    def agree(self) -> "JoiningReply":
        models = {"alone", "joined", *(["personal"] if self.mode else [])}
        if set(self.right) != models or set(self.less_alone) != models - {"alone"} or set(self.f1) - models:
            raise ValueError(f"there must be figures of {', '.join(sorted(models))}")
        if any(right > self.tested for right in self.right.values()):
            raise ValueError("more right answers than test samples")
        return self


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


def _shown(value: Any) -> str:
    return repr(value)[:40]
