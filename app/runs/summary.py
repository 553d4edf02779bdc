"""What summary.json holds: a run's final figures, from the lines of its rounds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..algorithms.registry import local_algorithm
from ..config.schema import Config
from ..models import registry as models
from ..training.evaluation import final_and_best


def summarise(config: Config, rows: Sequence[Mapping[str, Any]], status: str, error: str | None) -> dict[str, Any]:
    """The summary of a run with these lines of rounds.jsonl; what the server alone knows (bytes, seconds) is None or 0.

    status: completed or failed. error: why, of a run that failed.
    """
    summary: dict[str, Any] = {
        "status": status,
        "error": error,
        "experiment": config.experiment,
        "variant": config.variant,
        "method": config.method.name,
        "augmentation": config.augmentation.kind,
        "simulated": config.data.family == "eeg" and config.data.kind == "simulated",
        "warnings": [text for row in rows if (text := warning(config, row)) is not None],
        "privacy": None,
        "attack": None,
        "masked": False,
        "seed": config.seed,
        "rounds": len(rows),
        "metric": config.metric.name,
        "final": None,
        "final_of": None,
        "last": None,
        "best": None,
        "best_round": None,
        "val_metric": None,
        "by_domain": {},
        "mean_over_domains": None,
        "std_over_domains": None,
        "std_ddof": 0,
        "f1_macro": None,
        "parameters": None,
        "added_samples": 0,
        "perturbation_rms": 0.0,
        "seconds": None,
        "cpu_seconds": None,
        "bytes_up": 0,
        "bytes_down": 0,
        "peak_memory_mb": None,
    }
    if rows:
        how, key = "best" if local_algorithm(config).centralised else config.metric.final, val_metric(config)
        summary |= final_and_best(rows, config.metric.name, how, key)
        summary |= {"final_of": _final_of(how, len(rows), summary["best_round"]), "last": rows[-1][config.metric.name]}
        summary |= _over_domains(rows, how, summary["best_round"])
        summary["f1_macro"] = final_and_best(rows, "f1_macro", how, key)["final"]
    return summary


def _final_of(how: str, rounds: int, best_round: int | None) -> str:
    """What the final figure is, in words."""
    if how == "last5" and rounds > 1:
        return f"mean of the last {min(5, rounds)} rounds"
    return f"round {best_round}, the best validation round" if how == "best" and best_round else "last round"


def val_metric(config: Config) -> str:
    """What says which round is best: of the centralised reference the loss, by which it also stops early."""
    return "val_loss" if local_algorithm(config).centralised else f"val_{config.metric.name}"


def warning(config: Config, row: Mapping[str, Any]) -> str | None:
    """What a person should look at before believing the figures of this round."""
    text = models.load(config.model).warning(row)
    return None if text is None else f"round {row['round']}: {text}"


def _over_domains(rows: Sequence[Mapping[str, Any]], how: str, best_round: int | None) -> dict[str, Any]:
    """The domains' accuracies, averaged over the same rounds as the final figure; where models are each client's
    own, the clients' too.
    """
    window = rows[-5 if how == "last5" else -1 :]
    if how == "best" and best_round is not None:
        window = [row for row in rows if row["round"] == best_round]
    names = window[-1]["accuracy_by_domain"]
    by_domain = {n: math.fsum(row["accuracy_by_domain"][n] for row in window) / len(window) for n in names}
    mean = math.fsum(by_domain.values()) / len(by_domain)
    variance = math.fsum((value - mean) ** 2 for value in by_domain.values()) / len(by_domain)
    figures = {"by_domain": by_domain, "mean_over_domains": mean, "std_over_domains": math.sqrt(variance)}
    if clients := window[-1].get("accuracy_by_client"):
        own = {k: [r["accuracy_by_client"][k] for r in window if k in r["accuracy_by_client"]] for k in clients}
        figures["by_client"] = {k: math.fsum(values) / len(values) for k, values in own.items()}
    return figures


def strict(value: Any) -> Any:
    """The value as strict JSON: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
