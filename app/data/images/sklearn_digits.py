"""The data set that needs no download: scikit-learn's handwritten digits."""

import numpy as np
from sklearn.datasets import load_digits

from ..source import UNSET, Source
from .folders import ArrayImages


def sklearn_digits() -> Source:
    """1,797 handwritten digits of 8 x 8 grey pixels, ten classes, one domain, without an official split.

    scikit-learn gives the pixels as whole numbers 0..16; they are multiplied by 15 (0..240), so that each image is
    exactly proportional to the original and the L2-normalised ``pixels`` encoding of size 8 equals that of the
    64 original values.
    """
    data = load_digits()
    n = len(data.target)
    return Source(
        name="sklearn_digits",
        classes=tuple(str(digit) for digit in data.target_names),
        domains=("digits",),
        labels=data.target.astype(np.int64),
        domain=np.zeros(n, np.int64),
        split=np.full(n, UNSET, np.int8),
        images=ArrayImages((data.images * 15).astype(np.uint8), "sklearn_digits"),
    )
