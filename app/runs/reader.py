"""Run directories, read back: all that a sweep, a report and a table know of runs.

A run is known by its resolved configuration and the version of the code. Reading never fails on what a run left
behind: one that failed, broke off or is damaged has a status that says so, and no figures.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ..common.errors import FedgeoError

PLACES = ("run_dir", "sweep_dir", "cache_dir", "tracking", "resume")  # where files go: they change no result
OUTDATED = "outdated"  # the folder of a sweep for runs of an earlier version of the code
COMPLETED, FAILED, UNFINISHED, DAMAGED = "completed", "failed", "unfinished", "damaged"


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory. config: the resolved configuration as plain values. code: the version's hash, '' if unknown.

    summary: that of summary.json, where the run came to its end; else its status alone.
    """

    path: Path
    config: Mapping[str, Any]
    code: str
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return str(self.summary.get("status", UNFINISHED))

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The configuration with dotted keys."""
        return dict(flatten(self.config))

    @cached_property
    def identity(self) -> str:
        return identity(self.config)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The whole lines of rounds.jsonl; what a kill cut off does not count."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        rounds = []
        for line in lines:
            try:
                rounds.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return [line for line in rounds if isinstance(line, dict) and "round" in line]

    def figure(self, key: str) -> float | None:
        """A number of the summary; None where there is none."""
        value = self.summary.get(key)
        return float(value) if isinstance(value, int | float) else None

    def read_json(self, name: str) -> Any:
        """What one of the directory's JSON files holds; None where it is missing or damaged."""
        return _json(self.path / name)


def identity(config: Mapping[str, Any], without: Iterable[str] = ()) -> str:
    """What two runs of the same configuration have in common, as a hash: all of it but where files go.

    without: further top-level keys that do not count, such as the seed.
    """
    left_out = {*PLACES, *without}
    chosen = {key: value for key, value in config.items() if key not in left_out}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()


def find(folders: Iterable[Path]) -> list[Run]:
    """The runs in and below ``folders``, sorted by path. FedgeoError for a folder that is not there."""
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FedgeoError(f"{folder}: no such folder: give a run directory, or a folder of them")
        found |= {path: read(path) for path in _run_directories(folder.absolute())}
    return [found[path] for path in sorted(found)]


def is_run(path: Path) -> bool:
    """Whether a run has begun to write this directory."""
    return (path / "config.yaml").is_file() and (path / "figures").is_dir()


def read(path: Path) -> Run:
    """The run of one run directory."""
    try:
        config = OmegaConf.to_container(OmegaConf.load(path / "config.yaml"))
        assert isinstance(config, dict)
    except Exception:  # whatever a yaml parser makes of half a file
        return Run(path, {}, "", {"status": DAMAGED, "error": "config.yaml cannot be read"})
    versions = _json(path / "versions.json")
    code = str(versions.get("code", "")) if isinstance(versions, dict) else ""
    plain = {str(key): value for key, value in config.items()}
    if not (path / "summary.json").is_file():
        return Run(path, plain, code, {"status": UNFINISHED, "error": "it left no summary.json"})
    summary = _json(path / "summary.json")
    if not isinstance(summary, dict) or "status" not in summary:
        return Run(path, plain, code, {"status": DAMAGED, "error": "summary.json cannot be read"})
    return Run(path, plain, code, summary)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested mapping as (dotted key, value); lists and empty mappings are values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _run_directories(folder: Path) -> Iterator[Path]:
    for path, names, _ in os.walk(folder):
        if is_run(Path(path)):
            names.clear()
            yield Path(path)
        else:
            names[:] = sorted(name for name in names if name != OUTDATED and not name.startswith("."))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
