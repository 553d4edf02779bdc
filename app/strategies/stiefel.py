"""ProjAvg and RLAvg of FedSPDnet as Flower strategies, for anybody's ClientApp with orthonormal matrices in its model.

They are Flower's FedAvg but for the arrays that ``stiefel`` names: whose mean stays on the Stiefel manifold. These are
p x k matrices with orthonormal columns, or k x p with orthonormal rows, with any leading dimensions: (1, p, k) in
spd_learn. A parametrised layer (torch's ``orthogonal``, spd_learn's BiMap) must send the matrix itself, such as
``model.bimap.weight``, and take it by assignment; the parameters behind it are no points of the manifold.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from ..common.errors import FedgeoError
from ..geometry.stiefel import proj_avg, rl_avg


class StiefelFedAvg(FedAvg):
    """FedAvg whose mean of named matrices is a subclass's.

    stiefel: the names of the matrices: one name or pattern ("bimap.*"), or several. fedavg: all that FedAvg takes.
    """

    def __init__(self, *, stiefel: str | Sequence[str] = "stiefel.*", **fedavg: Any) -> None:
        super().__init__(**fedavg)
        self.stiefel = (stiefel,) if isinstance(stiefel, str) else tuple(stiefel)
        self._sent = ArrayRecord()

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        """A point of St(p, k), float64. previous: the global W_t (p, k). matrices: the clients' (p, k).

        shares: the weight of each. Raises FedgeoError naming the array ``name`` where there is no such mean.
        """
        raise NotImplementedError

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg's. Raises FedgeoError where ``stiefel`` does not name matrices of ``arrays``."""
        self.matrices(arrays)
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's mean, but for the named matrices. Raises FedgeoError where the clients' matrices cancel out."""
        replies = list(replies)
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        contents = [reply.content for reply in replies if not reply.has_error()]
        shares = [float(next(iter(c.metric_records.values()))[self.weighted_by_key]) for c in contents]  # type: ignore[arg-type]
        records = [next(iter(content.array_records.values())) for content in contents]
        for name in self.matrices(mean):
            mean[name] = self._mean(name, [_tensor(record, name) for record in records], shares)
        return mean, metrics

    def matrices(self, arrays: ArrayRecord) -> list[str]:
        """The names of the Stiefel matrices. Raises FedgeoError for a pattern that none has, and for other arrays."""
        found: dict[str, None] = {}
        for pattern in self.stiefel:
            named = [name for name in arrays if name == pattern or fnmatchcase(name, pattern)]
            if not named:
                raise FedgeoError(f"stiefel={pattern!r} matches none of the model's arrays: {', '.join(arrays)}")
            found |= dict.fromkeys(named)
        for name in found:
            if len(arrays[name].shape) < 2:
                raise FedgeoError(f"stiefel: {name} must be a matrix, not of shape {tuple(arrays[name].shape)}")
            if ".parametrizations." in name:
                raise FedgeoError(
                    f"stiefel: {name} is a parameter behind a matrix: let clients send the matrix itself, "
                    f"{name.partition('.parametrizations.')[0]}.weight"
                )
        return list(found)

    def _mean(self, name: str, matrices: list[Tensor], shares: list[float]) -> Array:
        """The mean of the clients' arrays (..., p, k) or (..., k, p), matrix by matrix, in the type that was sent."""
        previous = _tensor(self._sent, name)
        for value in matrices:
            if value.shape != previous.shape:
                shape, wanted = tuple(value.shape), tuple(previous.shape)
                raise FedgeoError(f"stiefel: a client's {name} has shape {shape}, it was sent {wanted}")
        rows, columns = previous.shape[-2:]
        wide = rows < columns

        def tall(value: Tensor) -> Tensor:
            """(..., rows, columns) as (number, p, k)."""
            stacked = value.reshape(-1, rows, columns)
            return stacked.mT if wide else stacked

        each = zip(tall(previous), *map(tall, matrices), strict=True)
        mean = torch.stack([self.stiefel_mean(before, list(own), shares, name) for before, *own in each])
        return Array((mean.mT if wide else mean).reshape(previous.shape).to(previous.dtype).contiguous().numpy())


def _tensor(record: ArrayRecord, name: str) -> Tensor:
    return torch.from_numpy(record[name].numpy())


class ProjAvg(StiefelFedAvg):
    """The mean of the clients' matrices, put back on the Stiefel manifold by its polar factor (FedSPDnet, Eq. 7)."""

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        return proj_avg(matrices, shares, name)


class RLAvg(StiefelFedAvg):
    """Lift the clients' matrices to the tangent space at the global W_t, average, and retract (FedSPDnet, Eq. 11)."""

    def stiefel_mean(self, previous: Tensor, matrices: list[Tensor], shares: list[float], name: str) -> Tensor:
        return rl_avg(previous, matrices, shares, name)
