"""The run directory: what a run leaves behind. Scripts and checks rely on its files and keys."""

import json
import math
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from app.checkpoint import save_weights, write_atomic
from app.config import Config, dump
from app.errors import FedgeoError
from app.evaluation import final_and_best
from app.models.base import Weights
from app.node import code_hash

PACKAGES = ("flwr", "ray", "torch", "numpy", "scikit-learn", "hydra-core", "open_clip_torch", "mne", "pyriemann")


class RunDirectory:
    """Writes the files of one run as they come to be, so that a failed run keeps what it had."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self.rows: list[dict[str, Any]] = []
        self.started = time.monotonic()
        check_new(path)
        (path / "figures").mkdir(parents=True)
        self.write("config.yaml", dump(config))
        self.write("versions.json", _json(versions()))
        (path / "rounds.jsonl").touch()

    def write(self, name: str, text: str) -> None:
        """Write one of the directory's text files."""
        write_atomic(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write one of the directory's JSON files, on one line; numbers that are not finite become null."""
        self.write(name, json.dumps(_plain(value)) + "\n")

    def append(self, row: dict[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        self.rows.append(row)
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(_plain(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_model(self, which: str, weights: Weights, classes: tuple[str, ...]) -> None:
        """model-final or model-best, with what is needed to use it: classes and the model's settings."""
        described = {
            "classes": list(classes),
            "model": self.config.model.model_dump(),
            "encoder": self.config.encoder.model_dump(),
            "experiment": self.config.experiment,
        }
        # one entry, for safetensors writes several in no fixed order
        save_weights(self.path / f"model-{which}.safetensors", weights, {"fedgeo": json.dumps(described)})

    def finish(self, status: str, error: str | None, facts: dict[str, Any]) -> dict[str, Any]:
        """Write summary.json and return it. ``facts`` are what only the server knows."""
        config = self.config
        summary: dict[str, Any] = {
            "status": status,
            "error": error,
            "experiment": config.experiment,
            "variant": config.variant,
            "method": config.method.name,
            "augmentation": config.augmentation.kind,
            "seed": config.seed,
            "rounds": len(self.rows),
            "metric": config.metric.name,
            "final": None,
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
            "seconds": time.monotonic() - self.started,
            "bytes_up": 0,
            "bytes_down": 0,
            "peak_memory_mb": None,
        }
        if self.rows:
            summary |= final_and_best(self.rows, config.metric.name, config.metric.final)
            summary |= self._over_domains()
            summary["f1_macro"] = final_and_best(self.rows, "f1_macro", config.metric.final)["final"]
        summary |= facts
        self.write("summary.json", _json(_plain(summary)))
        return summary

    def _over_domains(self) -> dict[str, Any]:
        """The domains' accuracies, averaged over the same rounds as the final figure."""
        window = self.rows[-5 if self.config.metric.final == "last5" else -1 :]
        names = window[-1]["accuracy_by_domain"]
        by_domain = {n: math.fsum(row["accuracy_by_domain"][n] for row in window) / len(window) for n in names}
        mean = math.fsum(by_domain.values()) / len(by_domain)
        variance = math.fsum((value - mean) ** 2 for value in by_domain.values()) / len(by_domain)
        return {"by_domain": by_domain, "mean_over_domains": mean, "std_over_domains": math.sqrt(variance)}


def check_new(path: Path) -> None:
    """Refuse a run directory that already holds something: a run never writes over another."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedgeoError(f"run_dir={path}: it exists already; name another, or remove it")


def default_run_dir(config: Config) -> Path:
    """runs/<time>-<experiment>-<method>-<augmentation>-seed<seed> in the working directory."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{config.experiment}-{config.method.name}-{config.augmentation.kind}-seed{config.seed}"
    path = Path.cwd() / "runs" / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path


def versions() -> dict[str, str]:
    """The packages and the code that a number depends on."""
    found = {"python": platform.python_version(), "code": code_hash()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _plain(value: Any) -> Any:
    """The value as strict JSON: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
