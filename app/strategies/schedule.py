"""The learning rate of the clients, which the server sets each round."""

from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..config.schema import Training


class LearningRate:
    """``lr`` as configured; with schedule ``plateau`` it steps once a round on the clients' validation loss."""

    def __init__(self, training: Training) -> None:
        self._optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=training.lr)
        self._plateau: ReduceLROnPlateau | None = None
        if training.schedule == "plateau":
            self._plateau = ReduceLROnPlateau(self._optimiser, patience=training.patience, factor=training.factor)

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
