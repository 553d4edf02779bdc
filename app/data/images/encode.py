"""Encoding beforehand: the embeddings of a configured data set, in the cache and as a file for ``data=features``."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...common.errors import FedgeoError, cause
from ...common.files import atomic_file
from ...config.schema import Config, ImageData
from ..cache_folder import cache_dir
from ..source import UNSET, Source
from .bit_depth import with_bit_depth
from .dataset import embed, encoder, image_dataset, load_source

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Encoded:
    """values: float32 (n, p), not normalised, of the source's ``rows`` int64 (n,); encoder: its name."""

    source: Source
    rows: np.ndarray
    values: np.ndarray
    encoder: str
    cache: Path


def encode(config: Config, *, whole: bool, progress: Callable[[int, int], None]) -> Encoded:
    """Embeddings of the images that the run would use, or of the ``whole`` set, kept in the cache.

    Raises FedgeoError for data that is no images.
    """
    if not isinstance(config.data, ImageData):
        raise FedgeoError(f"data={config.data.name}: not images: there is nothing to encode")
    if whole:
        source = load_source(config.data, config.federation)
        source, _ = with_bit_depth(source, config.data.bit_depth, cache_dir(config))
        rows = np.arange(len(source))
    else:
        planned = image_dataset(config)
        source = planned.source
        rows = np.unique(np.concatenate([*planned.partition.clients, planned.split.val, planned.split.test]))
    if source.images is None:
        raise FedgeoError(f"data={config.data.name}: holds embeddings already: there is nothing to encode")
    values = embed(source, rows, config, progress)
    for warning in image_dataset(config).warnings:  # the run looks at all images for them, and then need not again
        log.warning("%s", warning)
    return Encoded(source, rows, values, encoder(config).name, cache_dir(config))


def write_features(encoded: Encoded, path: Path) -> Path:
    """The embeddings as an npz file that ``data=features`` reads, whole or not at all; returns its absolute path."""
    source = encoded.source
    arrays: dict[str, np.ndarray] = {"classes": np.array(source.classes)}
    for number, domain in enumerate(source.domains):
        here = source.domain[encoded.rows] == number
        split = source.split[encoded.rows][here]
        arrays[f"{domain}_X"] = encoded.values[here]
        arrays[f"{domain}_y"] = source.labels[encoded.rows][here]
        if (split != UNSET).any():
            arrays[f"{domain}_split"] = split
    target = path.expanduser().absolute()
    try:
        with atomic_file(target) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as fault:
        raise FedgeoError(f"{target}: cannot be written ({cause(fault)}): give another file") from fault
    return target
