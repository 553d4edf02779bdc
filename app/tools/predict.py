"""A trained model on new samples: which class, and with what probability.

A model file says what it reads (see ``results.save_model``); input that does not fit is refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from scipy.special import softmax

from ..algorithms import registry
from ..common.errors import FedgeoError
from ..common.targets import is_ours
from ..config import schema
from ..data.eeg.trials import RECORDINGS
from ..data.images.decoding import FULL
from ..data.images.folders import SUFFIXES as IMAGES
from ..data.images.folders import FileImages
from ..encoders import embedding_cache
from ..encoders import registry as encoders
from ..models import registry as models
from ..models.base import Model
from ..one_shot.fitted import Fitted
from ..reports.tables import Cell, Table
from ..server.remote_dataset import RemoteDataset
from ..training.plain import predict
from .model_description import check, encoder_settings

ARRAYS = (".npy", ".npz")
METHODS = ("algorithms", "one_shot")  # a model file may name what is in these, and no other code, to be imported


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, and what its file says of it. facts: what all clients had alike."""

    path: Path
    model: Model
    classes: tuple[str, ...]
    facts: Mapping[str, Any]
    described: Mapping[str, Any]

    @property
    def eeg(self) -> bool:
        return "channels" in self.facts


@dataclass(frozen=True, eq=False)
class Predictions:
    """samples: what each row is called. probabilities: float64 (n, C), rows add up to 1. notes: what to know."""

    samples: tuple[str, ...]
    probabilities: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def predicted(self) -> list[str]:
        return [self.classes[best] for best in self.probabilities.argmax(axis=1)]

    def table(self) -> Table:
        """A row a sample: the class, its probability, and those of all classes."""
        rows: list[tuple[Cell, ...]] = [
            (sample, chosen, float(row.max()), *map(float, row))
            for sample, chosen, row in zip(self.samples, self.predicted, self.probabilities, strict=True)
        ]
        head = ("sample", "prediction", "probability", *(f"p({name})" for name in self.classes))
        return Table("", head, tuple(rows), digits=4, notes=self.notes)


def load_model(path: Path) -> Trained:
    """The model in ``path``. Raises FedgeoError for a file that is none, or that does not say what it reads."""
    if not path.is_file():
        raise FedgeoError(f"{path}: no such file: give a run's model-best.safetensors or model-final.safetensors")
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("fedgeo")
        weights = load_file(path)
        described = json.loads(text) if text else None
    except (SafetensorError, OSError, ValueError) as error:
        raise FedgeoError(f"{path}: not a readable safetensors file ({error})") from None
    described = check(described, path)
    classes = tuple(described["classes"])
    dataset = RemoteDataset(classes, (), (), described["facts"], ())
    try:
        method = described.get("method", {})
        target = str(method.get("target", ""))
        algorithm = registry.resolve(target) if is_ours(target, *METHODS) else None
        if algorithm is not None and issubclass(algorithm, Fitted):
            settings = {key: value for key, value in method.items() if key not in ("name", "target")}
            fitted = registry.load(target, **settings)
            assert isinstance(fitted, Fitted)
            model = fitted.model(dataset.inputs["channels"], len(classes))
        else:
            chosen = schema.Model.model_validate(described["model"])
            if chosen.target is not None and not is_ours(chosen.target, "models"):
                raise FedgeoError(f"{path}: its model is {chosen.target}: only models of this package are loaded")
            stiefel = any(name.startswith("stiefel.") for name in weights)
            model = models.load(chosen).build(dataset.inputs, len(classes), stiefel=stiefel)
        model.load(weights)
    except FedgeoError as error:
        raise FedgeoError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except Exception as error:  # of widths, names and settings that the file made up
        reason = " ".join(str(error).split())[:200]
        raise FedgeoError(
            f"{path}: its weights do not fit what its metadata say ({type(error).__name__}: {reason})"
        ) from None
    return Trained(path, model.eval(), classes, described["facts"], described)


def classify(trained: Trained, x: np.ndarray) -> np.ndarray:
    """Probabilities float64 (n, C): the softmax of the model's logits for its own kind of input x (n, ...)."""
    return np.asarray(softmax(predict(trained.model, x).astype(np.float64), axis=1))


def predict_images(
    trained: Trained, source: Path, *, device: str = "auto", checkpoint: Path | None = None
) -> Predictions:
    """Of an image, or of all images in and below a folder. checkpoint: the encoder's weights, where they are a file."""
    settings = _encoder_of(trained, source)
    if settings["name"] == "features":
        raise FedgeoError(
            f"{source}: {trained.path.name} was trained on embeddings that were made elsewhere: encode the images with "
            "the same encoder (scripts/embed.py) and give the .npy or .npz file"
        )
    files = files_of(source, IMAGES, "image")
    given = encoder_settings(settings, checkpoint)
    try:
        encoder = encoders.build(settings["name"], device=device, **given)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FedgeoError(f"{trained.path}: encoder {settings['name']}: {reason}") from None
    expected = trained.facts.get("encoder", encoder.fingerprint)
    if encoder.fingerprint != expected:
        raise FedgeoError(
            f"encoder {encoder.name}: its fingerprint is {encoder.fingerprint[:12]}, {trained.path.name} was trained "
            f"with {str(expected)[:12]}: use the same weights and preprocessing (--checkpoint FILE)"
        )
    size = settings.get("batch_size", 64)
    images = FileImages(tuple(files), trained.facts.get("bit depth", FULL))
    raw = embedding_cache.embed(images, range(len(files)), encoder, batch_size=size)
    x = embedding_cache.normalise(raw, settings["normalise"])
    return Predictions(tuple(_names(files, source)), classify(trained, x), trained.classes)


def predict_embeddings(trained: Trained, source: Path) -> Predictions:
    """Of the rows of an array (n, p) in a .npy file, or of the arrays X or <domain>_X in a .npz file."""
    settings, dimension = _encoder_of(trained, source), int(trained.facts["dimension"])
    names: list[str] = []
    parts = []
    for name, values in _arrays(source).items():
        if values.ndim != 2 or values.dtype.kind != "f" or not len(values):
            raise FedgeoError(f"{source}: {name or 'it'} is {values.dtype} {values.shape}, not embeddings (n, p)")
        if values.shape[1] != dimension:
            raise FedgeoError(
                f"{source}: embeddings of dimension {values.shape[1]}, {trained.path.name} reads {dimension}"
                f" ({settings['name']}): encode with the encoder that it was trained with"
            )
        if len(bad := np.flatnonzero(~np.isfinite(values).all(axis=1))):
            raise FedgeoError(f"{source}: row {bad[0]} of {name or 'it'} holds NaN or infinite values: encode it again")
        parts.append(values.astype(np.float32))
        names += [f"{name} {row}".strip() for row in range(len(values))]
    x = embedding_cache.normalise(np.concatenate(parts), settings["normalise"])
    note = f"embeddings normalised: {settings['normalise']}; whether they are by the model's encoder cannot be told"
    return Predictions(tuple(names), classify(trained, x), trained.classes, (note,))


def kind_of(source: Path) -> str:
    """'images', 'embeddings' or 'recordings', by suffix; of a folder, by what it holds most of."""
    if source.is_file():
        found = _kind(source)
    elif source.is_dir():
        kinds = [kind for file in source.rglob("*") if file.is_file() and (kind := _kind(file)) is not None]
        found = max(sorted(set(kinds)), key=kinds.count, default=None)
    else:
        raise FedgeoError(f"{source}: no such file or folder")
    if found is None:
        allowed = " ".join(sorted((*IMAGES, *ARRAYS, *RECORDINGS)))
        raise FedgeoError(f"{source}: no image, embeddings or recording by its name: known are {allowed}")
    return found


def files_of(source: Path, suffixes: Sequence[str] | frozenset[str], what: str) -> list[Path]:
    """``source`` itself, or the files of these suffixes in and below it, sorted. FedgeoError where there are none."""
    if source.is_file():
        return [source]
    files = sorted(f for f in source.rglob("*") if f.suffix.lower() in suffixes and not f.name.startswith("."))
    if not files:
        raise FedgeoError(f"{source}: holds no {what} ({' '.join(sorted(suffixes))})")
    return files


def _kind(file: Path) -> str | None:
    suffix = file.suffix.lower()
    for kind, suffixes in (("images", IMAGES), ("embeddings", ARRAYS), ("recordings", RECORDINGS)):
        if suffix in suffixes:
            return kind
    return None


def _encoder_of(trained: Trained, source: Path) -> Mapping[str, Any]:
    """The encoder that the model's embeddings are by, as its file describes it."""
    if trained.eeg:
        raise FedgeoError(
            f"{source}: {trained.path.name} reads EEG of {len(trained.facts['channels'])} channels, no images: give a "
            "recording, or a folder of them"
        )
    return dict(trained.described["encoder"])


def _arrays(source: Path) -> dict[str, np.ndarray]:
    """The arrays of embeddings in a file, by name; '' for the one of a .npy file."""
    try:
        found = np.load(source, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found:
            named = {key.removesuffix("_X"): found[key] for key in found.files if key == "X" or key.endswith("_X")}
            keys = list(found.files)
    except (ValueError, OSError, EOFError) as error:
        raise FedgeoError(f"{source}: not a readable array file ({' '.join(str(error).split())})") from None
    if not named:
        raise FedgeoError(f"{source}: has the arrays {', '.join(keys)}, but none called X or <domain>_X")
    return named


def _names(files: Sequence[Path], source: Path) -> list[str]:
    return [file.name if source.is_file() else file.relative_to(source).as_posix() for file in files]
