"""Looks at a site's data before it joins: is it readable, what would be shared, what is wrong, in plain words."""

import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..augmentation import registry as augmentation
from ..client.masks import MASKS, Masks
from ..client.questions import statistics
from ..common.code import code_hash
from ..common.errors import FedgeoError, cause
from ..config.compose import load
from ..config.node_config import Refusal, Site, check_run
from ..config.privacy import effective, rounded_counts
from ..config.schema import Config
from ..config.site_bounds import check_bounds, check_hidden
from ..data.images.dataset import ImageDataset, encoder, image_dataset
from ..data.images.folders import SUFFIXES
from ..data.site_dataset import local_config
from ..data.site_split import FILE, FOLDER, site_split
from ..models import registry as models
from .site_findings import SiteFindings, count

SHOWN = 10  # faults of one kind that are told one by one
ROW_BYTES = 3 * 8  # of a class in statistics beside its mean and covariance: label, count, rank


def check_site(path: Path, overrides: Sequence[str] = (), policy: Path | None = None) -> SiteFindings:
    """What there is to say of the data at ``path``, or of the site whose node-config is the file ``path`` (.toml).

    overrides: those of the run that is to be joined; without an experiment the data decide how they are looked at.
    policy: the site's own policy file.
    """
    found = SiteFindings(str(path), code=code_hash())
    try:
        with tempfile.TemporaryDirectory(prefix="fedgeo-") as scratch:
            _check(found, path, overrides, policy, Path(scratch))
    except FedgeoError as error:
        found.faults.append(str(error))
    except Exception as error:  # whoever checks is helped by what it is, not by where it was raised
        detail = " ".join(str(error).split())[:200]
        found.faults.append(f"{path}: cannot be checked ({type(error).__name__}: {detail})")
    return found


def _check(found: SiteFindings, path: Path, overrides: Sequence[str], policy: Path | None, scratch: Path) -> None:
    site = _site(path, policy, scratch, found)
    config = _config(site, overrides, found)
    found.policy = config.privacy.model_dump()
    if config.privacy.masked:
        found.details["public key for masked sums"] = Masks(site.state / MASKS, peers={}).public(0)
    site = _unkept(site, config)
    if found.kind == "eeg":
        from .site_check_eeg import check_recordings

        check_recordings(found, config, site)
    else:
        _check_images(found, config, site)


def _site(path: Path, policy: Path | None, scratch: Path, found: SiteFindings) -> Site:
    """The site of a node-config, its folders tried out; or one with this data, which writes in ``scratch``."""
    if path.suffix != ".toml":
        return Site(path.expanduser().absolute(), scratch / "state", scratch / "output", "site", "site", policy)
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FedgeoError(f"{path}: cannot be read as a node-config ({error})") from None
    site = Site.of(told)
    if site is None:
        raise FedgeoError(f"{path}: holds no data-path: a site needs name, data-path, state-path and output-path")
    for key, folder in (("state-path", site.state), ("output-path", site.output)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            trial = folder / ".fedgeo-trial"
            trial.write_text("")
            trial.unlink()
        except OSError as error:
            found.faults.append(f"{key}={folder}: cannot be written ({cause(error)})")
    if site.code is not None and site.code != found.code:
        found.faults.append(f"code={site.code[:12]}: the app here is {found.code[:12]}")
    return site


def _config(site: Site, overrides: Sequence[str], found: SiteFindings) -> Config:
    """The configuration to look at the data with; what kind of data they are goes into ``found``."""
    if not site.data.exists():
        raise FedgeoError(f"{site.data}: there is no such file or folder")
    looks = _looks_like(site.data)
    words = [word for word in overrides if not word.startswith("engine=")]
    if not any(word.startswith("experiment=") for word in words):
        words.insert(0, f"experiment={'eeg_folder' if looks == 'eeg' else 'image_folder'}")
        found.details["settings"] = "the defaults: give the run's experiment and settings to see what it would share"
    config = load(("engine=deployment", *words))
    config = config.model_copy(update={"privacy": effective(config.privacy, site.policy)})
    found.kind = "eeg" if config.data.family == "eeg" else "images"
    if found.kind != looks:
        held, wanted = ("images", "recordings") if found.kind == "eeg" else ("recordings", "images")
        raise FedgeoError(f"{site.data}: holds {held}, experiment={config.experiment} is for {wanted}")
    try:
        check_run(config, config.privacy.targets)
        chosen = "settings" not in found.details  # else the encoder is the default's, and no run's
        check_bounds(config, encodes=chosen and looks == "images" and site.data.is_dir())
    except Refusal as error:
        found.faults.append(str(error))
    return config


def _unkept(site: Site, config: Config) -> Site:
    """The site with the split that a run would find; one that is not there yet is not made by looking."""
    if not (site.state / FOLDER / FILE).exists():
        config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"releases": None})})
    split = site_split(config, site)
    return replace(site, split_seed=split.seed, test_fraction=split.test_fraction, val_fraction=split.val_fraction)


def _looks_like(data: Path) -> str:
    """'images' or 'eeg', by the files that there are. FedgeoError where there are neither."""
    if data.is_file():
        if data.suffix == ".npz":
            return "images"
        raise FedgeoError(f"{data}: a file must be an npz of embeddings; else give a folder")
    kinds = Counter(file.suffix.lower() for file in data.rglob("*") if file.is_file() and not file.name.startswith("."))
    images = sum(kinds[suffix] for suffix in SUFFIXES)
    recordings = sum(kinds[suffix] for suffix in (".edf", ".bdf", ".gdf", ".fif", ".vhdr", ".set"))
    if not images and not recordings:
        raise FedgeoError(
            f"{data}: holds neither images nor recordings (found: {', '.join(sorted(kinds)) or 'nothing'})"
        )
    return "images" if images > recordings else "eeg"


def _check_images(found: SiteFindings, config: Config, site: Site) -> None:
    try:
        held = image_dataset(local_config(config, site))
    except FedgeoError as error:
        found.faults.append(str(error))
        return
    if not _open_all(found, held):
        found.warnings += held.warnings
    labels, rows = held.source.labels, held.partition.clients[0]
    asked = bool(statistics(config))
    count(found, held.classes, labels, labels[rows], labels[held.split.test], asked)
    if held.source.features is not None:
        dimension = held.dimension
    elif "settings" in found.details:
        return
    else:
        try:
            dimension = encoder(local_config(config, site)).dimension
        except FedgeoError as error:
            found.faults.append(str(error))
            return
    found.details["dimension"] = dimension
    check_model(found, config, {"dimension": dimension})
    if augmentation.load(config.augmentation).shares_covariances:
        told = rounded_counts(np.bincount(labels[rows], minlength=len(held.classes)), config.privacy)
        found.bytes_statistics = statistics_bytes(told[told > 0].tolist(), dimension, config.augmentation.precision)


def check_model(found: SiteFindings, config: Config, inputs: Mapping[str, Any]) -> None:
    """Whether the run's model is one that the policy allows. inputs: as for ``Architecture.build``."""
    try:
        chosen = models.load(config.model)
        check_hidden(chosen.hidden_units(inputs), config.privacy, settable=hasattr(chosen, "hidden"))
    except Refusal as error:
        found.faults.append(str(error))


def _open_all(found: SiteFindings, held: ImageDataset) -> int:
    """Decode every image; tell of those that cannot be, and of those that are there twice. Returns how many cannot."""
    images = held.source.images
    if images is None:
        return 0
    bad: list[str] = []
    seen: dict[str, int] = {}
    twice = mixed = 0
    for index in range(len(images)):
        try:
            images[index]
            first = seen.setdefault(images.digest(index), index)
        except (FedgeoError, OSError) as error:
            bad.append(str(error))
            continue
        if first != index:
            twice += 1
            mixed += int(held.source.labels[first] != held.source.labels[index])
    found.faults += bad[:SHOWN]
    if len(bad) > SHOWN:
        found.faults.append(f"{len(bad) - SHOWN} more images cannot be read")
    if twice:
        found.warnings.append(f"{twice} images are there twice, {mixed} of them in two classes")
    return len(bad)


def statistics_bytes(counts: Sequence[int], dimension: int, precision: str) -> int:
    """What the class statistics of classes with these counts take when they are sent, at most."""
    size = 4 if precision == "float32" else 8
    total = 0
    for samples in counts:
        small = 2 * samples < dimension
        covariance = (samples - 1) * dimension if small else dimension * (dimension + 1) // 2
        total += ROW_BYTES + 8 * dimension + size * covariance
    return total
