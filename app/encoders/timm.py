"""Any model of timm without its classifier."""

from pathlib import Path
from typing import Any

from ..common.errors import FedgeoError
from .network import Network
from .weights import alike, checkpoint_file, fetching, first_line, fixed_seed, unfit, weights_missing


def build(
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
        raise FedgeoError(f"timm has no model {model!r}{alike(model, library.list_models())}")
    options: dict[str, Any] = {} if image_size is None else {"img_size": image_size}
    if checkpoint is not None:
        options["pretrained_cfg_overlay"] = {"file": str(checkpoint_file(checkpoint))}
    try:
        with fixed_seed(), fetching(f"timm {model}" if pretrained and checkpoint is None else None):
            # With its classifier, so that the weights are loaded strictly; it is dropped below.
            network: Any = library.create_model(model, pretrained=pretrained or checkpoint is not None, **options)
    except Exception as fault:
        if checkpoint is not None:
            raise unfit(model, str(checkpoint), fault) from fault
        if not pretrained:
            raise FedgeoError(f"timm {model}: {first_line(fault)}") from fault
        raise weights_missing(f"timm {model}", f"https://huggingface.co/timm/{model}", fault) from fault
    network.reset_classifier(0)
    wanted = {} if image_size is None else {"input_size": (3, image_size, image_size)}
    shown = library.data.resolve_model_data_config(network, args=wanted)
    transform = library.data.create_transform(**shown, is_training=False)
    preprocessing = {key: str(value) for key, value in shown.items()}
    description = {"library": "timm", "model": model.split(".")[0], "preprocessing": preprocessing}
    return Network(f"timm-{model}", network, transform, description, device=device, precision=precision)
