"""The learning rate of the clients, which the server sets each round."""

from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau


class LearningRate:
    """``lr``; with schedule ``plateau`` it steps once a round on the clients' validation loss.

    patience: rounds without improvement before a step. factor: what a step multiplies the rate by.
    """

    def __init__(
        self,
        lr: float,
        schedule: Literal["constant", "plateau"] = "constant",
        *,
        patience: int = 10,
        factor: float = 0.1,
    ) -> None:
        self._optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)
        self._plateau: ReduceLROnPlateau | None = None
        if schedule == "plateau":
            self._plateau = ReduceLROnPlateau(self._optimiser, patience=patience, factor=factor)

    @property
    def lr(self) -> float:
        """The rate of the next round."""
        return float(self._optimiser.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        """Where the schedule stands, as plain values."""
        return {"lr": self.lr, "plateau": None if self._plateau is None else self._plateau.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self._optimiser.param_groups[0]["lr"] = state["lr"]
        if self._plateau is not None:
            self._plateau.load_state_dict(state["plateau"])

    def step(self, loss: float) -> None:
        """A round has ended with this mean validation loss."""
        if self._plateau is not None:
            self._plateau.step(loss)
