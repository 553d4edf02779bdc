"""Hydra's sweep syntax: which runs the words of a sweep stand for."""

import itertools
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from ..common.errors import FedgeoError
from .compose import one_line


def expand(overrides: Sequence[str], also: Sequence[str] = ()) -> list[tuple[tuple[str, ...], str]]:
    """All combinations of hydra's sweep syntax: (overrides, label) for each; the label names what varies.

    also: further combinations, each a shell-quoted string of overrides that go with, or replace, those of
    ``overrides`` that have one value.
    """
    choices = _choices(overrides)
    varied = [key for key, options in choices.items() if len(options) > 1]
    found = [_combined(choices, varied, values) for values in itertools.product(*choices.values())]
    for words in also:
        try:
            own = _choices(shlex.split(words))
        except ValueError as error:
            raise FedgeoError(f"--also {words!r}: {error}") from None
        common = {key: options for key, options in choices.items() if len(options) == 1 and key not in own}
        found += [_combined(common | own, list(own), v) for v in itertools.product(*(common | own).values())]
    return found


def _choices(overrides: Sequence[str]) -> dict[str, list[str]]:
    """The overrides that each key takes, one after the other; of a key that is given twice the last counts."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise FedgeoError(one_line(error)) from None
    choices = {}
    for override in parsed:
        key = override.get_key_element()
        choices[key] = [str(override.input_line)]
        if override.is_sweep_override():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return choices


def _combined(
    choices: dict[str, list[str]], named: Sequence[str], values: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """One combination and its label."""
    chosen = dict(zip(choices, values, strict=True))
    return tuple(chosen.values()), " ".join(chosen[key] for key in named)
