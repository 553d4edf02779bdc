"""CLIP's text tower as a classifier: each class's name in sentences, and what they come to."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..common.errors import FedgeoError
from .open_clip import load_clip

BATCH = 256  # sentences encoded together


@torch.no_grad()
def text_classifier(
    classes: Sequence[str],
    templates: Sequence[str],
    model: str,
    pretrained: str | None = None,
    checkpoint: Path | str | None = None,
) -> Tensor:
    """W, float32 (C, p): the logits of an image's unit embedding x are W x, as CLIP's zero-shot classifier has them.

    Each row is the temperature times the unit vector along the mean of the unit embeddings of all ``templates``, which
    hold {} where the class's name goes (its underscores are read as spaces). model, pretrained, checkpoint: as of the
    encoder ``open_clip``. Raises FedgeoError for a template without {}, and where the model cannot be had.
    """
    import open_clip as library

    if not templates or any(template.count("{}") != 1 for template in templates):
        raise FedgeoError(f"method.templates={list(templates)}: each must hold {{}} once, where the class's name goes")
    clip, *_ = load_clip(model, pretrained, checkpoint)
    clip.eval()
    tokenizer = library.get_tokenizer(model)
    rows = []
    for name in classes:
        sentences = tokenizer([template.replace("{}", name.replace("_", " ")) for template in templates])
        encoded = torch.cat([clip.encode_text(part, normalize=True).float() for part in sentences.split(BATCH)])
        rows.append(torch.nn.functional.normalize(encoded.mean(dim=0), dim=0))
    return torch.stack(rows) * float(clip.logit_scale.exp())
