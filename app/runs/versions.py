"""The versions of the packages and of the code."""

import platform
from importlib import metadata

from ..common.code import code_hash

PACKAGES = ("flwr", "ray", "torch", "numpy", "scikit-learn", "hydra-core", "open_clip_torch", "mne", "pyriemann")


def versions() -> dict[str, str]:
    """The packages and the code that a number depends on."""
    found = {"python": platform.python_version(), "code": code_hash()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
