"""The data set of one site: its own folder or file, split by itself, with classes agreed by name."""

import functools
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..common.errors import FedgeoError
from ..config.node_config import Refusal, Site
from ..config.privacy import shared_classes, smallest_reported
from ..config.schema import Config, EegData, ImageData, Privacy
from .federated_dataset import FederatedDataset, Samples
from .links import refuse_links_out
from .site_split import site_split

log = logging.getLogger(__name__)

LABELS = "labels.csv"  # where a site keeps the labels of whole recordings: in its data-path


@dataclass(frozen=True, eq=False)
class SiteDataset:
    """One client, whatever number the server gives it, and its own validation and test samples.

    inner: the site's data as a simulation of a single client. agreed: all sites' classes in one order; None until
    the handshake: until then the site's own that ``privacy`` lets it name. Samples of a class that no
    site names are left out.
    """

    site: Site
    inner: FederatedDataset
    privacy: Privacy
    agreed: tuple[str, ...] | None = None
    _samples: dict[str, Samples] = field(default_factory=dict)

    central = ()

    def __post_init__(self) -> None:
        if not self.classes:
            raise Refusal(
                f"site {self.site.name} has no class with privacy.min_count={smallest_reported(self.privacy)} training "
                "samples: it takes no part"
            )
        unknown = set(self.inner.classes) - set(self.classes)
        if lacking := [name for name in self.named if name in unknown] if unknown else []:
            raise Refusal(f"the run's classes lack {', '.join(lacking)}, which site {self.site.name} has")

    @functools.cached_property
    def named(self) -> tuple[str, ...]:
        """The site's own classes that it may speak of."""
        counts = np.bincount(self.inner.train(0).y, minlength=len(self.inner.classes))
        return tuple(itertools.compress(self.inner.classes, shared_classes(counts, self.privacy)))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.named if self.agreed is None else self.agreed

    @property
    def domains(self) -> tuple[str, ...]:
        """The site's alone; its subjects' names stay where they are."""
        return (self.site.domain,)

    @property
    def inputs(self) -> Any:
        return self.inner.inputs

    def __len__(self) -> int:
        return 1

    def client_domain(self, client: int) -> str | None:
        return self.site.domain

    def train(self, client: int) -> Samples:
        return self._own("train")

    def held_out(self, part: str, client: int | None) -> Samples:
        if client is None:
            raise FedgeoError(f"a server holds no {part} samples of a deployment: the sites do")
        return self._own(part)

    def facts(self, client: int) -> dict[str, Any]:
        """What all sites must have alike. All of the site's images are encoded by the way, before the rounds."""
        for part in ("val", "test"):
            self._own(part)
        self._tell()
        facts = self.inner.facts(0)
        if "normalisation" in facts:
            facts.setdefault("encoder", "none: embeddings were made beforehand")
        return facts

    def partition_json(self) -> str:
        return self.inner.partition_json()

    @property
    def deserves_a_look(self) -> bool:
        """Whether there is anything to know of the data before believing a figure; the site's log says what."""
        return bool(getattr(self.inner, "warnings", ()))

    @functools.cache  # noqa: B019 - a site has one data set as long as its process runs
    def _tell(self) -> None:
        """Log, once and here alone, what of the data deserves a look: its names are not the server's."""
        for text in getattr(self.inner, "warnings", ()):
            log.warning("warning: %s", text)

    def _own(self, part: str) -> Samples:
        if part not in self._samples:
            holder = None if part in self.inner.central else 0
            found = self.inner.train(0) if part == "train" else self.inner.held_out(part, holder)
            places = {name: place for place, name in enumerate(self.classes)}
            labels = np.array([places.get(name, -1) for name in self.inner.classes], dtype=np.int64)[found.y]
            x, labels = found.x[labels >= 0], labels[labels >= 0]
            self._samples[part] = Samples(x, labels, np.zeros(len(labels), dtype=np.int64))
        return self._samples[part]


@functools.lru_cache(maxsize=16)
def site_dataset(config: Config, site: Site, agreed: tuple[str, ...] | None = None) -> SiteDataset:
    """The data set of ``site`` under the run's configuration. FedgeoError for data that cannot be used."""
    return SiteDataset(site, _inner(local_config(config, site)), config.privacy, agreed)


@functools.lru_cache(maxsize=16)
def _inner(config: Config) -> FederatedDataset:
    if isinstance(config.data, EegData):
        from .eeg.dataset import eeg_dataset

        return eeg_dataset(config)
    from .images.dataset import image_dataset

    return image_dataset(config)


def local_config(config: Config, site: Site) -> Config:
    """The run's configuration with the site's own paths and split in the place of all that the run names.

    The run decides how data are processed, the site which data and how they are split: a folder with one folder of
    images a class, an npz file of embeddings, or a folder of recordings. Its ``seed`` is the split's.
    """
    if not site.data.exists():
        raise FedgeoError(f"data-path={site.data}: no such file or folder")
    refuse_links_out(site.data)
    split = site_split(config, site)
    shares = {"test_fraction": split.test_fraction, "val_fraction": split.val_fraction}
    data: EegData | ImageData
    if isinstance(config.data, EegData):
        data = config.data.model_copy(
            update={
                "kind": "eeg_bids" if config.data.kind == "eeg_bids" else "eeg_folder",
                "path": str(site.data),
                "subjects": None,
                "exclude": None,
                "labels_csv": str(site.data / LABELS) if config.data.labels_csv else None,
                **shares,
            }
        )
    else:
        name = "image_folder" if site.data.is_dir() else "features"
        kept = {"family": "images", "bit_depth": config.data.bit_depth, "download": False}
        data = ImageData.model_validate({**kept, **shares, "name": name, "path": str(site.data)})
    encoded = config.encoder
    if site.encoder_checkpoint is not None:
        encoded = encoded.model_copy(update={"checkpoint": str(site.encoder_checkpoint)})
    whole = {"clients": 1, "partition": "iid", "partition_file": None, "min_per_client": 1, "min_per_class": 0}
    whole["validation"] = "server"  # what is held out of the whole is the site's own
    return config.model_copy(
        update={
            "seed": split.seed,
            "data": data,
            "encoder": encoded,
            "federation": config.federation.model_copy(update=whole),
            "augmentation": config.augmentation.model_copy(update={"step2": False}),
            "run_dir": None,
            "cache_dir": str(site.state / "cache"),
        }
    )
