"""Methods without gradient rounds: the server asks all clients for sums, as often as it must, and has the model.

The two sides of such a method stand in one file: ``answer`` is the client's, ``fit`` the server's. What goes up are
sums over a client's trials, never a trial.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..algorithms.base import Algorithm
from ..algorithms.signature import Template, check_tensors
from ..common.errors import FedgeoError
from ..geometry.spd import KarcherMean, karcher_step
from ..models.base import Model, Weights

Ask = Callable[[str, Weights], list[Weights]]
"""A question with its tensors, put to all clients; their answers."""

CONVERGED = 1e-6  # the norm of the gradient at which the search for a Riemannian mean ends
MOST_STEPS = 100
SYMMETRIC = 1e-6  # the asymmetry of a mean that is rounding, relative to its largest entry


@dataclass(frozen=True)
class Fitted(Algorithm):
    """A method for covariances (n, c, c) that brings its own model; the configuration's model plays no part.

    by_class: whether the server sends each class's own mean to all clients.
    """

    by_class: ClassVar[bool] = False

    def model(self, channels: int, classes: int) -> Model:
        """The untrained model, whose exchanged weights ``fit`` returns."""
        raise NotImplementedError

    def questions(self, channels: int, classes: int) -> dict[str, Template]:
        """What the server may ask, and the tensors that belong to each question."""
        raise NotImplementedError

    def check_question(self, question: str, asked: Weights, channels: int, classes: int) -> None:
        """Refuse a question that is none of this method's. Means must be symmetric and positive definite."""
        known = self.questions(channels, classes)
        if question not in known:
            raise FedgeoError(f"the server: it asks {question[:40]!r}; this method knows {', '.join(known)}")
        check_tensors(asked, known[question], "the server")
        for name in asked.keys() & {"mean", "means"}:
            definite = torch.linalg.eigvalsh(asked[name]) > 0
            scale = asked[name].abs().max()
            if not bool(definite.all()) or bool((asked[name] - asked[name].mT).abs().max() > SYMMETRIC * scale):
                raise FedgeoError(f"the server: {name} must be symmetric and positive definite")

    def answer(
        self, question: str, asked: Weights, x: Tensor, y: Tensor, classes: int, memory: MutableMapping[str, Any]
    ) -> Weights:
        """What a client with trials x (n, c, c) float64 of classes y (n,) says to a question and its tensors.

        memory: what it may find again at its next question, if that meets the same process.
        """
        raise NotImplementedError

    def fit(self, ask: Ask, classes: int) -> Weights:
        """The model's weights, from as many questions as it takes."""
        raise NotImplementedError


def total(answers: list[Weights]) -> Weights:
    """The sum of all clients' answers, name by name, in client order."""
    return {name: torch.stack([answer[name] for answer in answers]).sum(0) for name in answers[0]}


def start(mean: Tensor, what: str) -> KarcherMean:
    """The search for a Riemannian mean, from the arithmetic one (c, c). FedgeoError, with ``what``, if singular."""
    values = torch.linalg.eigvalsh(mean)
    rank = int((values > torch.finfo(values.dtype).eps * len(values) * values[-1]).sum())
    if rank < len(values):
        raise FedgeoError(
            f"{what}: covariances of rank {rank} of {len(values)} have no Riemannian mean (an average reference "
            "costs one): use a shrinkage estimator (covariances.estimator=oas), or leave channels out"
        )
    return KarcherMean(mean)


def search(means: list[KarcherMean], step: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """The Riemannian means (m, c, c) from where each search stands.

    step: the pooled sums (m, c, c) of tangent vectors at points (m, c, c), and how many trials each is over, (m,).
    """
    for _ in range(MOST_STEPS):
        points = torch.stack([mean.point for mean in means])
        sums, counts = step(points)
        means = [
            mean if mean.norm < CONVERGED else karcher_step(mean, [s], [int(n)])
            for mean, s, n in zip(means, sums, counts, strict=True)
        ]
        if all(mean.norm < CONVERGED for mean in means):
            return torch.stack([mean.point for mean in means])
    worst = max(mean.norm for mean in means)
    raise FedgeoError(
        f"the Riemannian mean was not found in {MOST_STEPS} steps (gradient {worst:.1e}): use a shrinkage estimator "
        "(covariances.estimator=oas), or look for outlying trials"
    )
