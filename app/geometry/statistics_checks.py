"""What class statistics must be to be used: of the classes their client spoke of, and of embeddings such as it has.

Over the samples of a class the mean of |x|^2 is |mu|^2 + tr(Sigma). So for embeddings of unit norm it is 1, less where
a policy has cut the rank of Sigma or an embedding is zero, and never more. A merged class's is a mean of its clients',
so that what holds for each holds for what all of them are sent.
"""

import numpy as np

from ..common.errors import FedgeoError
from ..common.received import LARGEST, bounded, check_counts
from .class_geometry import NEGATIVE
from .class_statistics import TRIANGLE, ByClass, ClassStatistics

SLACK = 1e-4  # how far rounding may take a mean of |x|^2 above its bound, relative to it


def check_statistics(
    found: ClassStatistics, counts: np.ndarray, dimension: int, exact: bool, who: str, largest: float = LARGEST
) -> None:
    """Refuse class statistics that do not go with what the client said of itself, or are no covariances.

    counts: int (C,), of its handshake. exact: whether they are the true ones; a covariance's rank is then below its
    count. largest: the most that the mean of |x|^2 over a class can be. Raises FedgeoError, which begins with ``who``.
    """
    if found.dimension != dimension:
        raise FedgeoError(f"{who}: its statistics have dimension {found.dimension}, it said {dimension}")
    check_counts(found.classes, found.counts, counts, who)
    bounded(found.means, "means", who)
    bounded(found.factors, "factors", who)
    bounded(found.triangles, "triangles", who)
    if exact and bool((found.ranks > np.maximum(found.counts - 1, 0)).any()):
        raise FedgeoError(f"{who}: a covariance has more factors than its class has samples to vary")
    check_norms(found, largest, who)
    for row in np.flatnonzero(found.ranks == TRIANGLE):
        covariance = found.covariance(int(row))
        slack = NEGATIVE * float(np.linalg.norm(covariance))
        try:
            np.linalg.cholesky(covariance + (slack + np.finfo(np.float64).tiny) * np.eye(dimension))
        except np.linalg.LinAlgError:
            raise FedgeoError(
                f"{who}: the covariance of class {found.classes[row]} is not positive semidefinite"
            ) from None


def check_norms(found: ByClass, largest: float, who: str) -> None:
    """Refuse a class whose mean of |x|^2, |mu|^2 + tr(Sigma), is above ``largest``. Raises FedgeoError."""
    squares = np.square(found.means).sum(axis=1) + np.array([found.trace(row) for row in range(len(found))])
    if (odd := np.flatnonzero(~(squares <= largest * (1 + SLACK)))).size:
        row = odd[0]
        bound = "they have unit norm" if largest == 1 else f"it can be at most {largest:g}"
        raise FedgeoError(
            f"{who}: by its mean and covariance the embeddings of class {found.classes[row]} have a mean squared norm "
            f"of {squares[row]:.6g}, but {bound}"
        )
