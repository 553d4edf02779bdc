"""After the last round: what a client has alone, with the joined model, and with a model of its own from it.

Nothing is chosen by test samples. A kind of model is chosen on samples that the client has kept out of every phase and
round; what was chosen is then fitted again on all of its samples, and only that is tried on its test samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from ..algorithms.base import Local
from ..algorithms.fedavg import FedAvg
from ..common.errors import FedgeoError
from ..common.seeds import SHUFFLE, generator
from ..data.federated_dataset import Samples
from ..data.held_back import held_back
from ..models.base import Weights
from ..one_shot.ridge import Ridge
from ..personal import heads
from ..personal.intervals import Difference, paired
from ..training.evaluation import f1_macro
from ..training.plain import LocalSettings, predict, train
from ..training.samples import TensorSet

if TYPE_CHECKING:
    from .node import Node

ALONE, JOINED, PERSONAL = "alone", "joined", "personal"
LOCAL, LDA = "trained", "lda"  # what a client can have alone
STEADY = "ensemble"  # the kind that fails least: chosen unless another one is clearly better
CLEARLY = 0.02  # of the validation samples, and half a one: by so many more right answers (tuned on CIFAR-10 and PACS)
KEPT = 0.2  # of its samples, to choose between them where it has kept none back
Kind = Callable[[Samples], Weights]


@dataclass(frozen=True)
class Joining:
    """What came of joining at one client.

    training, tested: its samples. alone: which kind it has alone. mode: which kind its own model is, None for none.
    right: of each of ALONE, JOINED and PERSONAL, bool (tested,), where it is right. f1: the macro F1 of each. weights:
    of its own model, else of the joined one.
    """

    training: int
    tested: int
    alone: str
    mode: str | None
    right: Mapping[str, np.ndarray]
    f1: Mapping[str, float]
    weights: Weights = field(repr=False)

    def less_alone(self, which: str) -> Difference:
        """What ``which`` gains over what the client has alone."""
        return paired(self.right[which], self.right[ALONE])


class Trial:
    """The models that a client can have. joined: the last round's weights. trained: the counts of each class that these
    were trained with, over all clients, (C,)."""

    def __init__(self, node: "Node", client: int, joined: Weights, trained: np.ndarray) -> None:
        self.node, self.client = node, client
        self.joined, self.trained = joined, trained
        self.classes = len(node.dataset.classes)
        self.settings = node.config.personal
        self.linear = heads.is_head(joined)

    def run(self) -> Joining:
        dataset, client = self.node.dataset, self.client
        own = dataset.train(client)
        kept = dataset.held_out("val", client) if "val" not in dataset.central else _only(own, np.zeros(len(own), bool))
        test = dataset.held_out("test", client)
        every = _joined(own, kept)
        alone = self._alone(own, kept)
        mode = self.settings.mode
        if mode == "none":
            chosen = None
        elif mode == "auto":
            chosen = self._best({JOINED: self._as_joined, ALONE: alone[1], **self._kinds(alone[1])}, own, kept)
        else:
            chosen = mode
        models = {JOINED: self.joined, ALONE: alone[1](every)}
        if chosen is not None:
            kinds = {JOINED: self._as_joined, ALONE: alone[1], **self._kinds(alone[1])}
            models[PERSONAL] = kinds[chosen](every)
        answers = {name: self._logits(weights, test).argmax(axis=1) for name, weights in models.items()}
        return Joining(
            len(every),
            len(test),
            alone[0],
            chosen,
            {name: answer == test.y for name, answer in answers.items()},
            {name: f1_macro(_confusion(test.y, answer, self.classes)) for name, answer in answers.items()},
            models.get(PERSONAL, self.joined),
        )

    def _as_joined(self, _: Samples) -> Weights:
        return self.joined

    def _alone(self, own: Samples, kept: Samples) -> tuple[str, Kind]:
        """The better, on samples that it was not fitted to, of local training as long as the federation's, and LDA."""
        config = self.node.config
        epochs = config.federation.rounds * config.training.epochs
        kinds: dict[str, Kind] = {LOCAL: lambda samples: self._trained(self.node.initial(), samples, epochs)}
        if self.linear:
            kinds[LDA] = lambda samples: heads.own_lda(samples.x, samples.y, self.classes, config.seed)
        if not len(kept):
            back = held_back(own.y, KEPT, config.seed, self.client)
            own, kept = _only(own, ~back), _only(own, back)
        name = self._best(kinds, own, kept)
        fitted: dict[int, tuple[Samples, Weights]] = {}  # it is asked for more than once

        def alone(samples: Samples) -> Weights:
            if id(samples) not in fitted:
                fitted[id(samples)] = (samples, kinds[name](samples))
            return fitted[id(samples)][1]

        return name, alone

    def _kinds(self, alone: Kind) -> dict[str, Kind]:
        """The models of its own that it can make of the joined one, by mode. alone: what it has without it."""
        if not self.linear:
            return {"finetune": lambda samples: self._trained(self.joined, samples, self.settings.epochs)}

        def prior(samples: Samples) -> Weights:
            head = self.joined
            if isinstance(self.node.algorithm, Ridge):  # its scores are no log-posteriors
                head = heads.tempered(head, torch.from_numpy(samples.x), torch.from_numpy(samples.y))
            counts = np.bincount(samples.y, minlength=self.classes)
            smoothing = self.settings.smoothing
            return heads.with_prior(head, heads.shares(counts, smoothing), heads.shares(self.trained, smoothing))

        return {
            "prior": prior,
            "finetune": lambda samples: self._trained(prior(samples), samples, self.settings.epochs),
            "ensemble": lambda samples: heads.ensemble([prior(samples), alone(samples)]),
        }

    def _best(self, kinds: Mapping[str, Kind], own: Samples, kept: Samples) -> str:
        """The kind that is right most often on ``kept``, fitted to ``own``; of those the one that is surest of it.

        A few validation samples tell little: STEADY, where it is one of the kinds, gives way to what is clearly better.
        """
        if len(kinds) == 1 or not len(kept):
            return next(iter(kinds))

        def merit(name: str) -> tuple[float, float]:
            logits = torch.from_numpy(self._logits(kinds[name](own), kept)).double()
            y = torch.from_numpy(kept.y)
            ahead = 0.5 + CLEARLY * len(y) if name == STEADY else 0.0
            return int((logits.argmax(1) == y).sum()) + ahead, -float(F.cross_entropy(logits, y))

        return max(kinds, key=merit)

    def _trained(self, start: Weights, samples: Samples, epochs: int) -> Weights:
        """Local training, plain and alone."""
        node, training = self.node, self.node.config.training
        settings = LocalSettings(
            epochs, training.batch_size, training.optimiser, training.lr, training.momentum, training.weight_decay
        )
        seeded = generator(node.config.seed, SHUFFLE, self.client, 0)
        data = TensorSet(samples.x, samples.y)
        return train(node.model(), data, FedAvg(), Local(start), settings, seeded).weights

    def _logits(self, weights: Weights, samples: Samples) -> np.ndarray:
        """float (n, C)."""
        model = self.node.model()
        model.load(weights)
        if not len(samples):
            return np.empty((0, self.classes))
        model.calibrate(torch.from_numpy(self.node.dataset.train(self.client).x))
        return predict(model, samples.x)


def read_trained(auxiliary: Weights, classes: int) -> np.ndarray:
    """The counts (C,) of each class that the joined model was trained with, as the server tells them."""
    found = auxiliary.get("trained")
    if auxiliary.keys() != {"trained"} or found is None or found.shape != (classes,):
        raise FedgeoError(f"the server: what the model was trained with must be {classes} counts")
    counts = found.double().numpy()
    if not np.isfinite(counts).all() or bool((counts < 0).any()):
        raise FedgeoError("the server: what the model was trained with must be counts")
    return counts


def told(found: Joining, step: int) -> dict[str, object]:
    """What the server is told, plain values. step: counts are told as the multiple of it below, 1 as they are.

    Where they are not told exactly, of a difference no more is said than on which side of 0 its interval lies.
    """

    def floor(number: int) -> int:
        return number // step * step

    differences: dict[str, object] = {}
    for name in found.right.keys() - {ALONE}:
        less = found.less_alone(name)
        exact = {"difference": less.difference, "low": less.low, "high": less.high, "p": less.p} if step == 1 else {}
        differences[name] = {"verdict": less.verdict, **exact}
    return {
        "training": floor(found.training),
        "tested": floor(found.tested),
        "alone": found.alone,
        "mode": found.mode,
        "right": {name: floor(int(right.sum())) for name, right in found.right.items()},
        "f1": dict(found.f1) if step == 1 else {},
        "less_alone": differences,
    }


def _joined(one: Samples, other: Samples) -> Samples:
    if not len(other):
        return one
    fields = ("x", "y", "domain")
    return Samples(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in fields))


def _only(samples: Samples, rows: np.ndarray) -> Samples:
    return Samples(samples.x[rows], samples.y[rows], samples.domain[rows])


def _confusion(y: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """int64 (C, C), true classes in rows."""
    return np.bincount(y * classes + answers, minlength=classes**2).reshape(classes, classes)
