"""Which device a process computes on."""

import torch

from .errors import FedgeoError


def choose_device(device: str) -> torch.device:
    """auto, cpu or cuda as a torch device; auto is cuda where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise FedgeoError(f"device must be auto, cpu or cuda, not {device!r}")
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise FedgeoError("device=cuda, but torch finds no GPU here: set device=cpu or device=auto")
    return torch.device("cuda" if device != "cpu" and found else "cpu")
