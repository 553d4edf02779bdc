"""Runs one of whose processes is killed: how it ends, how it goes on, the run that nothing happened to."""

import json
from pathlib import Path

from app.launch.job import Job, plan, run_in_process
from app.launch.superlink import PrivateSuperLink
from app.launch.sweep import run_here
from app.runs import reader
from tests.processes import Killer
from tests.running import rounds

DIGITS = ("federation.rounds=40", "federation.participation=0.6", "training.epochs=1")  # a tenth of a second a round
SCAFFOLD = ("method=scaffold", *DIGITS)
ENDED = (reader.UNFINISHED, reader.FAILED)  # failed where the server's process was told to end in time to write it


def run_killed(job: Job, killer: Killer) -> str:
    """The error of a run, one of whose processes ``killer`` kills. It keeps its rounds and says so."""
    error = run_here(job, killer.link, killer).error
    assert killer.killed and error
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", error)
    assert killer.number <= len(rounds(job.run_dir)) < job.rounds
    return error


def resume(folder: Path, link: PrivateSuperLink) -> None:
    assert run_here(plan([f"resume={folder}"]), link, Killer(link)).error is None


def equal(folder: Path, reference: Path) -> None:
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert rounds(folder) == rounds(reference)
    for name in ("model-final.safetensors", "model-best.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name


def uninterrupted(words: tuple[str, ...], folder: Path) -> Path:
    """The same run in this process, which a simulation equals."""
    run_in_process(plan((*words, "engine=inprocess"), run_dir=folder), lambda row: None)
    return folder
