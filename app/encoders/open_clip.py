"""CLIP's image tower, from open_clip."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..common.errors import FedgeoError
from .network import Network
from .weights import alike, checkpoint_file, fetching, fixed_seed, unfit, weights_missing


def build(
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
        raise FedgeoError(f"open_clip has no model {model!r}{alike(model, known)}")
    tag = library.pretrained.get_pretrained_cfg(model, pretrained) if pretrained else {}
    if pretrained and not tag:
        if checkpoint is not None or not Path(pretrained).is_file():
            tags = library.list_pretrained_tags_by_model(model)
            raise FedgeoError(f"encoder.pretrained={pretrained}: neither a file nor a tag of {model} (tags: {tags})")
        checkpoint = pretrained
    # OpenAI's own weights need another activation than the model's plain configuration has; open_clip only warns.
    quick = bool(tag.get("quick_gelu", False)) or bool(library.get_model_config(model).get("quick_gelu", False))
    shown = {f"image_{key}": tag[key] for key in ("mean", "std", "interpolation", "resize_mode") if tag.get(key)}
    source = None if checkpoint is None else str(checkpoint_file(checkpoint))
    try:
        with fixed_seed(), fetching(f"open_clip {model} {pretrained}" if tag and source is None else None):
            clip, _, transform = library.create_model_and_transforms(
                model, pretrained=source or pretrained, force_quick_gelu=quick, **shown
            )
    except Exception as fault:
        if source is not None:
            raise unfit(model, source, fault) from fault
        place = tag.get("url") or f"https://huggingface.co/{tag.get('hf_hub', '').rstrip('/')}"
        raise weights_missing(f"open_clip {model} {pretrained}", place, fault) from fault
    label = f"open_clip-{model}-{pretrained if tag else 'checkpoint' if source else 'random'}"
    return clip, transform, quick, label
