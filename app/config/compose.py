"""The configuration: composed by hydra from conf/, checked once, the same on the server and on every client.

``load(overrides)`` is all that other modules need. The yaml files carry the defaults; the classes here say what
each key may be, so that a wrong value is a one-line error before anything starts.
"""

import copy
import difflib
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ..common.code import CONF
from ..common.errors import FedgeoError
from .schema import Config

# ${either:CONDITION,A,B} in conf/ is A where the condition holds, else B
OmegaConf.register_new_resolver("either", lambda condition, yes, no: yes if condition else no, replace=True)


def load(overrides: Sequence[str] | str = (), experiment: str | None = None) -> Config:
    """The checked configuration for hydra ``overrides`` (a list, or one shell-quoted string).

    ``experiment`` names the preset where the overrides do not. Raises FedgeoError with one line that names the
    key and what is allowed.
    """
    words = tuple(shlex.split(overrides)) if isinstance(overrides, str) else tuple(overrides)
    if experiment and not any(word.startswith("experiment=") for word in words):
        words = (f"experiment={experiment}", *words)
    return _load(tuple(map(_as_path, words)))


def _as_path(word: str) -> str:
    """resume=DIR with DIR in quotes, whatever it is called: a sweep's folders have = and , in their names."""
    key, _, value = word.partition("=")
    if key != "resume" or value[:1] in ("", "'", '"') or value == "null":
        return word
    return f"{key}='{value}'" if "'" not in value else word


@functools.lru_cache(maxsize=16)
def _load(overrides: tuple[str, ...]) -> Config:
    raw = _compose(overrides)
    variants = raw.pop("variants") or {}
    coefficients = _method(raw)
    chosen = variants.get(raw["variant"])
    if chosen is None:
        allowed = ", ".join(name for name, settings in variants.items() if settings is not None)
        raise FedgeoError(
            f"variant={raw['variant']}: experiment={raw['experiment']} has no such variant: must be one of {allowed}"
        )
    if raw["variant"] != "recommended":  # the paper's coefficients go with the paper's units
        chosen = {"method": coefficients} | chosen
    if chosen:  # a variant's settings stand between the experiment's and the user's, who may want another model
        model = {key: value for key, value in chosen.pop("model", {}).items() if key in raw["model"]}
        raw = _compose((*_flatten(chosen | {"model": model}), *overrides))
        raw.pop("variants")
        _method(raw)
    raw["model"] = _own_model(overrides) or raw["model"]
    try:
        return Config.model_validate(raw)
    except pydantic.ValidationError as error:
        raise FedgeoError(_first(error)) from None


def method_grid(overrides: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """The values that a comparison tries of the method's own coefficients, by name; the method's file declares them."""
    grid = _compose(tuple(overrides))["method"].get("grid") or {}
    return {str(key): tuple(values) for key, values in grid.items()}


def _method(raw: dict[str, Any]) -> dict[str, Any]:
    """The paper's coefficients of the method; they and its grid are taken out of ``raw``, for they are no settings."""
    raw["method"].pop("grid", None)
    return raw["method"].pop("paper", None) or {}


def _own_model(overrides: tuple[str, ...]) -> dict[str, Any] | None:
    """The model's settings where the user names another kind of model than the preset's, whose do not fit then."""
    named = [word for word in overrides if word.startswith("model=")]
    if not named:
        return None
    preset = _compose(tuple(word for word in overrides if not word.startswith(("model=", "model."))))
    own: dict[str, Any] = _compose(tuple(word for word in overrides if word.startswith(("model=", "model."))))["model"]
    return None if own["kind"] == preset["model"]["kind"] else own


def _compose(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The composed yaml as plain values; ``experiment`` holds the chosen preset's name.

    What files are chosen is composed once for all values that go with it: hydra takes a quarter of a second for that.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        ConfigLoaderImpl.validate_sweep_overrides_legal(parsed, run_mode=RunMode.RUN, from_shell=False)
        # what is hydra's own, as a search path, may bring further files
        outside = any(override.is_hydra_override() for override in parsed)
        for override in parsed:
            if override.is_hydra_override() and override.key_or_group != "hydra.searchpath":
                raise FedgeoError(
                    f"{override.key_or_group}: hydra's own settings have no effect here: runs go where run_dir or "
                    "sweep_dir says, and --jobs says how many at once"
                )
        files = [override for override in parsed if outside or (CONF / override.key_or_group).is_dir()]
        composed, experiment = _chosen_files(tuple(str(override.input_line) for override in files))
        composed = copy.deepcopy(composed)
        ConfigLoaderImpl._apply_overrides_to_config([each for each in parsed if each not in files], composed)
        OmegaConf.set_struct(composed, False)
        raw = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise FedgeoError(one_line(error, [word for word in overrides if _chooses(word)])) from None
    assert isinstance(raw, dict)
    raw["experiment"] = experiment
    return {str(key): value for key, value in raw.items()}


@functools.lru_cache(maxsize=64)
def _chosen_files(overrides: tuple[str, ...]) -> tuple[DictConfig, str]:
    """The yaml files that ``overrides`` of groups choose, composed, and the preset's name. Not to be changed."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", overrides=list(overrides), return_hydra_config=True)
    experiment = str(composed.hydra.runtime.choices["experiment"])
    with open_dict(composed):
        del composed["hydra"]
    return composed, experiment


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A nested mapping as hydra overrides: {'a': {'b': 1}} -> ['a.b=1']."""
    flat = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append(f"{prefix}{key}={'null' if value is None else value}")
    return flat


def _first(error: pydantic.ValidationError) -> str:
    """The first fault as 'key=value: what is allowed'."""
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"]]
    if path[0] == "data" and len(path) > 2:
        del path[1]  # the kind of data by which the settings were chosen
    # a union's branch names are no part of the key
    key = ".".join(part for part in path if re.fullmatch(r"[a-z_]\w*", part) and part not in ("int", "float"))
    if fault["type"] == "extra_forbidden":
        return f"{key}: no such key"
    message = fault["msg"].replace("Input should be ", "must be ")
    if fault["type"] == "dict_type":  # braces without quotes are taken apart by the shell
        message = f"must be a mapping, in quotes: '{key}={{name: value, name: value}}'"
    if fault["type"] == "string_pattern_mismatch":
        address = key == "federation.ray_address"
        message = (
            "must be host:port, such as 127.0.0.1:6379" if address else "must be 64 hexadecimal digits, a public key"
        )
    given = fault["input"]
    shown = given if isinstance(given, str | int | float | bool) else "null" if given is None else type(given).__name__
    same_key = [e for e in error.errors() if [str(p) for p in e["loc"]][: len(path) - 1] == path[:-1]]
    if len(path) > len(key.split(".")) and len(same_key) > 1:  # a union: tell every branch
        message = " or ".join(dict.fromkeys(e["msg"].replace("Input should be ", "must be ") for e in same_key))
    return f"{key}={shown}: {message}"


def _chooses(word: str) -> bool:
    """Whether an override chooses one of the files of a group."""
    group, _, name = word.partition("=")
    return (CONF / group / f"{name}.yaml").is_file()


def one_line(error: Exception, chosen: Sequence[str] = ()) -> str:
    """Hydra's message on one line, with the nearest existing key where an unknown one was given.

    chosen: the overrides that choose files, whose keys there are.
    """
    text = " ".join(str(error).split())
    bare = re.search(r"Error parsing override '(.*?)' missing EQUAL at '<EOF>'", text)
    if bare:
        return f"{bare.group(1)}: not KEY=VALUE{_meant(bare.group(1))}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        key = unknown.group(1)
        near = nearest(key, chosen)
        return f"{key}: no such key" + (f"; did you mean {' or '.join(near)}?" if near else "")
    found_none = r"Could not find '([^']+)'.*?Available options in '[^']+': (.*?)(?: Config search path|$)"
    missing = re.search(found_none, text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        options = [name for name in missing.group(2).split() if not name.startswith("_")]
        return f"{group}={option}: must be one of {', '.join(options)}"
    return text


def nearest(key: str, chosen: Sequence[str] = ()) -> list[str]:
    """What a key that there is not may have been meant for: groups and keys that look like it, or end in it."""
    known = known_keys(chosen)
    if ends := [name for name in known if name.endswith(f".{key}")]:
        return ends[:3]
    groups = [folder.name for folder in CONF.iterdir() if folder.is_dir()]
    return difflib.get_close_matches(key, [*groups, *known], n=3, cutoff=0.6)


def _meant(word: str) -> str:
    """What a word without a value may have been meant for: a key, or one of the choices of a group."""
    if word in known_keys():
        return f": give {word} a value"
    groups = sorted(path.parent.name for path in CONF.glob("*/*.yaml") if path.stem == word)
    return f"; did you mean {' or '.join(f'{group}={word}' for group in groups)}?" if groups else ""


def known_keys(chosen: Sequence[str] = ()) -> list[str]:
    """Every key of the configuration that these choices of files give, dotted."""
    raw = _compose(tuple(chosen))
    _method(raw)
    return [item.split("=", 1)[0] for item in _flatten({k: v for k, v in raw.items() if k != "variants"})]


def dump(config: Config) -> str:
    """The resolved configuration as yaml."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))
