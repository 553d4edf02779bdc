"""A frozen network behind its preprocessing: device, precision and fingerprint."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from PIL import Image

from ..common.device import choose_device
from ..common.errors import FedgeoError

EXACT_COSINE = 0.9999
"""The least cosine between a float32 and a bfloat16 embedding of the same picture at which bfloat16 counts as exact."""

PRECISIONS = ("auto", "float32", "bfloat16")


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
        self._module = module.eval().requires_grad_(False).to(self.device).to(memory_format=torch.channels_last)
        self.precision = "float32"
        samples = torch.stack([self.preprocess(picture) for picture in _sample_pictures()])
        exact = self.encode(samples)
        if exact.ndim != 2:
            raise FedgeoError(f"encoder {name}: gives {tuple(exact.shape)} for a batch, expected (images, dimension)")
        self.dimension = exact.shape[1]
        if precision == "bfloat16" or (precision == "auto" and self.device.type == "cpu" and _fast_bfloat16()):
            light = copy.deepcopy(self._module).to(torch.bfloat16)
            if precision == "bfloat16" or _least_cosine(exact, _run(light, samples)) >= EXACT_COSINE:
                self._module, self.precision = light, "bfloat16"

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return self._transform(image.convert("RGB"))

    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        return _run(self._module, batch)


@torch.inference_mode()
def _run(module: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    weight = next(module.parameters())
    out = module(batch.to(weight.device, weight.dtype, non_blocking=True, memory_format=torch.channels_last))
    return (out[0] if isinstance(out, tuple) else out).float().cpu()


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
