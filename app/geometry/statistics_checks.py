"""What a client's class statistics must be to be used: those of the classes it spoke of, and real covariances."""

import numpy as np

from ..common.errors import FedgeoError
from ..common.received import bounded, check_counts
from .class_geometry import NEGATIVE
from .class_statistics import TRIANGLE, ClassStatistics


def check_statistics(found: ClassStatistics, counts: np.ndarray, dimension: int, exact: bool, who: str) -> None:
    """Refuse class statistics that do not go with what the client said of itself, or are no covariances.

    counts: int (C,), of its handshake. exact: whether they are the true ones; a covariance's rank is then below its
    count. Raises FedgeoError, which begins with ``who``.
    """
    if found.dimension != dimension:
        raise FedgeoError(f"{who}: its statistics have dimension {found.dimension}, it said {dimension}")
    check_counts(found.classes, found.counts, counts, who)
    bounded(found.means, "means", who)
    bounded(found.factors, "factors", who)
    bounded(found.triangles, "triangles", who)
    if exact and bool((found.ranks > np.maximum(found.counts - 1, 0)).any()):
        raise FedgeoError(f"{who}: a covariance has more factors than its class has samples to vary")
    for row in np.flatnonzero(found.ranks == TRIANGLE):
        covariance = found.covariance(int(row))
        slack = NEGATIVE * float(np.linalg.norm(covariance))
        try:
            np.linalg.cholesky(covariance + (slack + np.finfo(np.float64).tiny) * np.eye(dimension))
        except np.linalg.LinAlgError:
            raise FedgeoError(
                f"{who}: the covariance of class {found.classes[row]} is not positive semidefinite"
            ) from None
