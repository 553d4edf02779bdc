"""How good a model is: accuracy, by domain too, loss, macro F1, confusion; and a run's final figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from ..common.errors import FedgeoError


@dataclass(frozen=True, eq=False)
class Scores:
    """Figures of one model on one set of samples. Accuracies and F1 are 0..1.

    loss: mean cross-entropy in nats. f1_macro: the mean F1 over the classes that occur among the labels.
    accuracy_by_domain leaves out domains without samples; mean_over_domains and std_over_domains (divisor
    number - ddof, the population's) are over the domains it holds, and None if it is empty.
    confusion: int64 (C, C), rows are the true classes and columns the predicted ones, as in scikit-learn.
    f1_macro_clients: the mean of the clients' own macro F1, where clients evaluated; else None.
    """

    samples: int
    accuracy: float
    f1_macro: float
    loss: float
    accuracy_by_domain: dict[str, float]
    mean_over_domains: float | None
    std_over_domains: float | None
    confusion: np.ndarray
    f1_macro_clients: float | None = None
    ddof: int = 0

    def row(self, prefix: str = "") -> dict[str, Any]:
        """The figures a line of rounds.jsonl holds; ``prefix`` ("val_") goes before each key."""
        keys = ["accuracy", "f1_macro", "loss", "accuracy_by_domain", "mean_over_domains", "std_over_domains"]
        if self.f1_macro_clients is not None:
            keys.append("f1_macro_clients")
        return {prefix + key: getattr(self, key) for key in keys}


def evaluate(
    outputs: np.ndarray,
    labels: np.ndarray,
    domain: np.ndarray,
    domains: Sequence[str],
    classes: Sequence[str],
    *,
    probabilities: bool = False,
) -> Scores:
    """The scores of a model's outputs.

    outputs: (n, C) logits, or the classes' probabilities where ``probabilities``. labels: int (n,), an index
    into classes. domain: int (n,), an index into domains. The predicted class is the first with the largest
    output.
    Raises FedgeoError for no samples, labels that are no class, and outputs that are not finite.
    """
    n, n_classes = len(labels), len(classes)
    if n == 0:
        raise FedgeoError("no samples to evaluate on: set data.test_fraction above 0 or give a test set")
    if outputs.shape != (n, n_classes):
        raise FedgeoError(f"outputs have shape {outputs.shape}, expected {(n, n_classes)} (samples, classes)")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise FedgeoError(f"labels run from {labels.min()} to {labels.max()}, expected 0 to {n_classes - 1}")
    unusable = int((~np.isfinite(outputs)).any(axis=1).sum())
    if unusable:
        raise FedgeoError(
            f"the model's outputs are not finite for {unusable} of {n} samples: training has diverged, lower "
            "training.lr"
        )
    outputs = outputs.astype(np.float64)
    if probabilities:
        true = outputs[np.arange(n), labels]
        losses = -np.log(np.maximum(true, np.finfo(np.float64).tiny))  # a loss that JSON can hold
    else:
        losses = sample_losses(outputs, labels)
    cells = (domain * n_classes + labels) * n_classes + outputs.argmax(axis=1)
    shape = (len(domains), n_classes, n_classes)
    confusions = np.bincount(cells, minlength=math.prod(shape)).reshape(shape)
    return _scores(dict(zip(domains, confusions, strict=True)), confusions.sum(0), float(losses.mean()), None)


def sample_losses(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """float64 (n,): the cross-entropy of each sample, in nats, from logits (n, C) and labels int (n,)."""
    outputs = outputs.astype(np.float64)
    return np.asarray(logsumexp(outputs, axis=1) - outputs[np.arange(len(labels)), labels])


def scores_from_confusions(
    confusions: Sequence[np.ndarray], domains: Sequence[str | None], loss_sums: Sequence[float]
) -> Scores:
    """The scores over all clients' samples, from what each client counted.

    confusions: one int (C, C) a client, true classes in rows. domains: each client's domain, None where it is
    mixed: such a client counts in everything but the figures by domain. loss_sums: each client's sum of
    cross-entropies. f1_macro pools the counts; f1_macro_clients averages the macro F1 of the clients that
    have samples.
    """
    total = np.asarray(sum(confusions, start=np.int64(0)))
    if not total.any():
        raise FedgeoError(
            "no client has samples to evaluate on, of some class at least privacy.min_count: set data.test_fraction "
            "higher, or give a test set"
        )
    by_domain: dict[str, np.ndarray] = {}
    for confusion, name in zip(confusions, domains, strict=True):
        if name is not None:
            by_domain[name] = by_domain[name] + confusion if name in by_domain else confusion
    own = [f1_macro(confusion) for confusion in confusions if confusion.sum()]
    return _scores(by_domain, total, math.fsum(loss_sums) / int(total.sum()), float(np.mean(own)))


def f1_macro(confusion: np.ndarray) -> float:
    """The mean of 2 TP / (samples + predictions) over classes with samples; true classes in rows, (C, C)."""
    samples, predicted = confusion.sum(1), confusion.sum(0)
    present = samples > 0
    return float(np.mean(2 * np.diag(confusion)[present] / (samples + predicted)[present]))


def final_and_best(
    rounds: Sequence[Mapping[str, Any]], metric: str, final: str = "last5", val_metric: str | None = None
) -> dict[str, Any]:
    """What a run reports, from its lines of rounds.jsonl: keys metric, final, best, best_round, val_metric.

    final="last5" is the mean test metric of the last min(5, rounds) rounds, "last" that of the last one, "best" the
    same as best (the last one without validation). best is the test metric at the best validation round, the first
    among equals; val_metric (the key "val_" + metric unless given; of "val_loss" the least is best) is the validation
    figure of that round. A line of round 0, before training, counts only if there is no other; lines without the
    metric (not evaluated) do not count. best, best_round and val_metric are None without validation. Raises
    FedgeoError if no line has the metric.
    """
    if final not in ("last5", "last", "best"):
        raise FedgeoError(f"metric.final={final}: allowed are last5, last, best")
    key = val_metric or f"val_{metric}"
    lines = [line for line in rounds if line.get(metric) is not None]
    if not lines:
        known = sorted({name for line in rounds for name, value in line.items() if isinstance(value, float)})
        raise FedgeoError(f"metric.name={metric}: no round has it; there are {', '.join(known) or 'no rounds'}")
    lines = [line for line in lines if line["round"] > 0] or lines
    last = [line[metric] for line in lines[-5 if final == "last5" else -1 :]]
    validated = [line for line in lines if line.get(key) is not None and not math.isnan(line[key])]
    sign = -1 if key == "val_loss" else 1
    best = max(validated, key=lambda line: sign * line[key], default=None)  # max keeps the first among equals
    if final == "best" and best is not None:
        last = [best[metric]]
    return {
        "metric": metric,
        "final": math.fsum(last) / len(last),
        "best": best and best[metric],
        "best_round": best and best["round"],
        "val_metric": best and best[key],
    }


def _scores(
    by_domain: Mapping[str, np.ndarray], confusion: np.ndarray, loss: float, f1_macro_clients: float | None
) -> Scores:
    accuracies = {name: _accuracy(counts) for name, counts in by_domain.items() if counts.sum()}
    values = list(accuracies.values())
    return Scores(
        samples=int(confusion.sum()),
        accuracy=_accuracy(confusion),
        f1_macro=f1_macro(confusion),
        loss=loss,
        accuracy_by_domain=accuracies,
        mean_over_domains=float(np.mean(values)) if values else None,
        std_over_domains=float(np.std(values, ddof=Scores.ddof)) if values else None,
        confusion=confusion,
        f1_macro_clients=f1_macro_clients,
    )


def _accuracy(confusion: np.ndarray) -> float:
    return float(np.trace(confusion) / confusion.sum())
