"""A site of a deployment: what its own node-config says, and what a run may not ask of it.

In simulation a node is told nothing but its place. At a site the data and all that is written lie where the
site's own configuration says; nothing that a server sends makes this machine read another file.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from ..common.code import CONF
from ..common.errors import FedgeoError
from ..common.targets import is_ours
from .schema import Config

NEEDED = ("data-path", "state-path", "output-path", "name")
SPLIT = ("split-seed", "test-fraction", "val-fraction")
OPTIONAL = ("domain", "policy", "code", "encoder-checkpoint", *SPLIT)
PLACE = ("partition-id", "num-partitions")  # a node-config of exactly these is a simulated node's
_NAME = re.compile(r"\w[\w .+-]{0,63}")
_OPTION = re.compile(r"[\w-]+")


class Refusal(FedgeoError):  # noqa: N818
    """A fault that a site tells the server in full: its text holds nothing of the site's data or folders."""


@dataclass(frozen=True)
class Site:
    """What a SuperNode's node-config says.

    data: the site's images, embeddings or recordings. state: what is kept from message to message. output: what
    the site is left with. domain: where its data come from; its name where nothing else is said. policy: a file
    that says what may be shared at most. code: the hash of the app that the site has agreed to run.
    encoder_checkpoint: the weights of a frozen encoder, for a site without a network. split_seed, test_fraction,
    val_fraction: how its data are split, whatever a run says; None: see app/data/site_split.py.
    """

    data: Path
    state: Path
    output: Path
    name: str
    domain: str
    policy: Path | None = None
    code: str | None = None
    encoder_checkpoint: Path | None = None
    split_seed: int | None = None
    test_fraction: float | None = None
    val_fraction: float | None = None

    @staticmethod
    def of(node_config: Mapping[str, object]) -> "Site | None":
        """The site of this node-config, None for a simulated node. Raises FedgeoError that names the key."""
        if set(node_config) <= set(PLACE):
            return None
        given = {key: str(value) for key, value in node_config.items() if key not in PLACE}
        for key in NEEDED:
            if not given.get(key):
                raise FedgeoError(f"node-config has no {key}: a site needs {', '.join(NEEDED)}")
        if unknown := sorted(given.keys() - {*NEEDED, *OPTIONAL}):
            raise FedgeoError(f"node-config: unknown {unknown[0]}; allowed are {', '.join((*NEEDED, *OPTIONAL))}")
        for key in ("name", "domain"):
            if key in given and not _NAME.fullmatch(given[key]):
                raise FedgeoError(f"node-config: {key}={given[key]!r} must be 1 to 64 letters, digits, spaces or . + -")
        paths = {key: Path(given[key]) for key in ("data-path", "state-path", "output-path")}
        paths |= {key: Path(given[key]) for key in ("policy", "encoder-checkpoint") if key in given}
        for key, path in paths.items():
            if not path.is_absolute():
                raise FedgeoError(f"node-config: {key}={path} must be an absolute path")
        for key in ("state-path", "output-path"):
            if paths[key].resolve().is_relative_to(paths["data-path"].resolve()):
                raise FedgeoError(f"node-config: {key}={paths[key]} must lie outside of data-path")
        return Site(
            data=paths["data-path"],
            state=paths["state-path"],
            output=paths["output-path"],
            name=given["name"],
            domain=given.get("domain", given["name"]),
            policy=paths.get("policy"),
            code=given.get("code"),
            encoder_checkpoint=paths.get("encoder-checkpoint"),
            split_seed=_seed(given),
            test_fraction=_fraction(given, "test-fraction"),
            val_fraction=_fraction(given, "val-fraction"),
        )


def _seed(given: Mapping[str, str]) -> int | None:
    text = given.get("split-seed")
    if text is not None and not re.fullmatch(r"\d{1,18}", text):
        raise FedgeoError(f"node-config: split-seed={text} must be a whole number of at most 18 digits")
    return None if text is None else int(text)


def _fraction(given: Mapping[str, str], key: str) -> float | None:
    text = given.get(key)
    if text is not None and not re.fullmatch(r"0|0?\.\d+|0\.0+", text):
        raise FedgeoError(f"node-config: {key}={text} must be a share from 0 to below 1, such as 0.2")
    return None if text is None else float(text)


def check_words(experiment: str, overrides: str) -> None:
    """Refuse a run's words that would make the composition read a file outside of conf/, or an environment variable.

    Raises Refusal, before anything is composed.
    """
    words = shlex.split(overrides)
    if not _OPTION.fullmatch(experiment):
        raise Refusal(f"experiment={experiment!r}: a site takes the names in conf/experiment only")
    groups = {folder.name for folder in CONF.iterdir() if folder.is_dir()}
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise Refusal("the run's overrides cannot be read") from error
    for word, override in zip(words, parsed, strict=True):
        key = override.key_or_group
        if "${" in word or key.startswith("hydra") or "/" in key:
            raise Refusal(f"the run's override of {key} reaches beyond conf/: a site refuses it")
        if key in groups and not all(_OPTION.fullmatch(option) for option in _options(override)):
            raise Refusal(f"{key}: a site takes the names in conf/{key} only")


def _options(override: Override) -> list[str]:
    """The options of a group that an override chooses."""
    value = override.value()
    return [str(option) for option in value] if isinstance(value, list) else [str(value)]


def check_run(config: Config, targets: Sequence[str] | None = None) -> None:
    """Refuse a run that is not meant for sites, or that names files or code of its own. Raises Refusal.

    targets: the modules, or classes as 'module:Class', that ``method.target`` may name beside the app's own methods;
    None: all of Flower's.
    """
    if config.engine != "deployment":
        raise Refusal(f"engine={config.engine}: a site with data of its own takes part in engine=deployment only")
    if config.attack.name != "none":
        raise Refusal(f"attack={config.attack.name} is for simulations: a site takes part in no attack")
    target = config.method.target
    named = target.startswith("flwr.") if targets is None else {target, target.partition(":")[0]} & set(targets)
    if not (is_ours(target, "algorithms", "one_shot") or named):
        allowed = "of Flower" if targets is None else f"that its policy names ({', '.join(targets) or 'none'})"
        raise Refusal(f"method.target={target}: a site runs methods of the app and {allowed} only")
    if ":" in config.augmentation.kind and not is_ours(config.augmentation.kind, "augmentation"):
        raise Refusal(f"augmentation.kind={config.augmentation.kind}: a site runs augmentations of the app only")
    if config.model.target is not None and not is_ours(config.model.target, "models"):
        raise Refusal(f"model.target={config.model.target}: a site runs models of the app only")
    if config.data.family == "eeg" and ":" in config.data.kind:
        raise Refusal(f"data.kind={config.data.kind}: a site reads its own recordings, as eeg_folder or eeg_bids does")
    chosen = config.encoder.settings
    if chosen.get("checkpoint"):
        raise Refusal("encoder.checkpoint: a site reads the file that its own node-config names, encoder-checkpoint")
    if re.search(r"[/\\]|\.\w+$", str(chosen.get("pretrained") or "")):
        raise Refusal("encoder.pretrained: must be a tag, for a site reads no file that a run names")
    if not re.fullmatch(r"[\w.-]*", str(chosen.get("model") or "")):
        raise Refusal("encoder.model: must be a plain name, for a site fetches no weights from where a run says")


def check_code(site: Site, here: str, there: str) -> None:
    """Refuse a server whose code is not this site's, and code that is not the one the site agreed to. Raises Refusal.

    here: the hash of the app that runs here. there: the server's.
    """
    if here != there:
        raise Refusal(f"the server runs code {there[:12]}, site {site.name} {here[:12]}: install the same version")
    if site.code is not None and site.code != here:
        raise Refusal(f"site {site.name} agreed to code {site.code[:12]}, the run's is {here[:12]}")
