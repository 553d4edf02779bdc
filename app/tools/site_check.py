"""Looks at a site's data before it joins: is it readable, what would be shared, what is wrong, in plain words."""

import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..augmentation import registry as augmentation
from ..common.code import code_hash
from ..common.errors import FedgeoError
from ..config.compose import load
from ..config.node_config import Refusal, Site, check_run
from ..config.privacy import effective, shared_classes
from ..config.schema import Config
from ..data.images.dataset import ImageDataset, encoder, image_dataset
from ..data.images.folders import SUFFIXES
from ..data.site_dataset import local_config
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
    found.policy = effective(config.privacy, site.policy).model_dump()
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
            found.faults.append(f"{key}={folder}: cannot be written ({error.strerror})")
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
    try:
        check_run(config)
    except Refusal as error:
        found.faults.append(str(error))
    found.kind = "eeg" if config.data.family == "eeg" else "images"
    if found.kind != looks:
        held, wanted = ("images", "recordings") if found.kind == "eeg" else ("recordings", "images")
        raise FedgeoError(f"{site.data}: holds {held}, experiment={config.experiment} is for {wanted}")
    return config


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
    count(found, held.classes, labels, labels[rows])
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
    if augmentation.load(config.augmentation).shares_covariances:
        counts = np.bincount(labels[rows], minlength=len(held.classes))
        kept = counts[shared_classes(counts, effective(config.privacy, site.policy))]
        found.bytes_statistics = statistics_bytes(kept.tolist(), dimension, config.augmentation.precision)


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
