"""Many arms over many seeds: each tuned on the validation of other seeds, then all of them in one table.

An arm is a data set, a method and a variation of it (an augmentation, say). Every arm is tried at the same number of
settings. A run that is finished is never repeated: the folder of results is all that a comparison knows, so that it
can be interrupted, resumed and extended.
"""

import functools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..algorithms.base import Algorithm
from ..algorithms.registry import local_algorithm
from ..augmentation import registry as augmentation
from ..common.errors import FedgeoError
from ..config.compose import dump, load, method_grid
from ..config.schema import Config
from ..launch.job import Job, plan, run_in_process
from ..launch.workers import Outcome, Silent, run_jobs
from ..strategies.compatibility import first_head
from .tuning import POINTS, RATE, RATES, Choice, Value, axes, choices

COSTS = ("cpu_seconds", "bytes_up", "bytes_down")
WINDOW = 5  # rounds whose validation score is averaged, as the test score is with metric.final=last5
DIVERGED = "is not finite"  # what a run says whose rate was too high: it would do the same again
Note = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """rates: the lowest and the highest learning rate. points: how many settings are tried for every arm."""

    rates: tuple[float, float] = RATES
    points: int = POINTS


@dataclass(frozen=True)
class Arm:
    """One cell of the table. Each part has a name for people and the overrides that it stands for.

    listed: further keys that are tuned, with their values.
    """

    data: str
    method: str
    variation: str
    overrides: tuple[str, ...]
    listed: tuple[tuple[str, tuple[Value, ...]], ...] = ()

    @functools.cached_property
    def config(self) -> Config:
        """At the first of the listed values."""
        return load((*self.overrides, *(f"{key}={values[0]}" for key, values in self.listed)))

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        return local_algorithm(self.config)

    def choices(self, grid: Grid) -> list[Choice]:
        """The settings that are tried; a key that the arm sets itself is not tuned. One where nothing is to be tuned.

        Raises FedgeoError where the arm lists more than ``grid`` has points.
        """
        fixed = {word.partition("=")[0].lstrip("+") for word in self.overrides}
        declared = {f"method.{key}": values for key, values in method_grid(self.overrides).items()}
        has_rate = (self.algorithm.trains or "lr" in self.config.method.settings) and RATE not in fixed
        listed = dict(self.listed)
        own = {key: values for key, values in declared.items() if key not in fixed and key not in listed}
        return choices(axes(listed, own, grid.rates if has_rate else None, grid.points))

    @property
    def control(self) -> bool:
        """Whether it is plain federated training: from zero, on what clients hold or repetitions of it."""
        federated = self.algorithm.trains and self.algorithm.shares and not self.algorithm.centralised
        from_zero = "model.init" not in dict(self.listed) and first_head(self.config) is None
        return federated and from_zero and augmentation.load(self.config.augmentation).control


@dataclass(frozen=True)
class Task:
    """One run: an arm at a setting and a seed."""

    arm: Arm
    choice: Choice
    seed: int

    @property
    def name(self) -> str:
        """The folder of the run, below the comparison's."""
        words = (self.arm.method, self.arm.variation, self.choice.label, f"seed{self.seed}")
        return f"{self.arm.data}/{'-'.join(words)}".replace(" ", "_")

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*self.arm.overrides, *self.choice.overrides, f"seed={self.seed}", "engine=inprocess")


@dataclass(frozen=True)
class Row:
    """A line of the table: accuracies 0..1, one a seed, and means over the seeds of the rest.

    choice: the setting that validation has chosen among ``tried``. seconds: of processor time, so that what else the
    machine does has no part in it. over_domains: each seed's mean and standard deviation (divisor n) over domains;
    empty where there is one domain. up, down: bytes.
    """

    arm: Arm
    choice: Choice
    tried: int
    scores: tuple[float, ...]
    over_domains: tuple[tuple[float, float], ...]
    seconds: float
    up: float
    down: float

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)


def arms(data: Mapping[str, Sequence[str]], chosen: Sequence[str], shared: Sequence[str]) -> list[Arm]:
    """Every arm on every data set. data: name -> overrides. chosen: 'METHOD AUGMENTATION', further overrides after it.

    An override with several values, ``model.init=zeros,lda``, is tuned. Raises FedgeoError for an arm without an
    augmentation.
    """
    made = []
    for name, where in data.items():
        for words in chosen:
            try:
                method, augmentation, *more = words.split()
            except ValueError:
                raise FedgeoError(f"{words}: an arm is a method and an augmentation, then overrides") from None
            listed = dict(found for word in more if (found := several(word)) is not None)
            single = [word for word in more if several(word) is None]
            all_of_it = (*where, *shared, f"method={method}", f"augmentation={augmentation}", *single)
            if "init" in load(all_of_it).model.settings and "model.init" not in listed:
                all_of_it = ("model.init=zeros", *all_of_it)  # rounds start from zero unless the arm says otherwise
            made.append(Arm(name, method, " ".join((augmentation, *more)), all_of_it, tuple(listed.items())))
    return made


def several(word: str) -> tuple[str, tuple[Value, ...]] | None:
    """The key and values of an override that lists some, 'KEY=A,B'; None of any other."""
    key, _, text = word.partition("=")
    if "," not in text or text[0] in "[{'\"":
        return None
    try:
        return key, tuple(sorted(float(value) for value in text.split(",")))
    except ValueError:
        return key, tuple(text.split(","))


def compare(
    folder: Path,
    arms: Sequence[Arm],
    grid: Grid,
    seeds: Sequence[int],
    tuning: Sequence[int],
    jobs: int = 1,
    note: Note = print,
) -> list[Row]:
    """Try every arm at all settings of ``grid`` with the seeds ``tuning``, run the best over ``seeds``; their rows.

    The best has the highest mean validation score over the last rounds of the runs of ``tuning``; one with which a run
    failed, by divergence for instance, is out. Test scores play no part in the choice, nor do the seeds of the table.
    An arm of which nothing is tuned has one setting. ``jobs``: how many processes. Raises FedgeoError where an arm
    failed at every setting, where a seed is for both, and for a folder of other settings. What is given twice counts
    once.
    """
    if both := sorted(set(seeds) & set(tuning)):
        raise FedgeoError(f"seed {both[0]} is among those of the table and of the tuning: choose other tuning seeds")
    arms, seeds, tuning = list(dict.fromkeys(arms)), list(dict.fromkeys(seeds)), list(dict.fromkeys(tuning))
    tried = {arm: arm.choices(grid) for arm in arms}
    first = [Task(arm, choice, seed) for arm in arms if len(tried[arm]) > 1 for choice in tried[arm] for seed in tuning]
    faults = run_all(folder, first, jobs, note)
    best = {
        arm: choose(folder, arm, tried[arm], tuning, faults) if len(tried[arm]) > 1 else tried[arm][0] for arm in arms
    }
    for arm, choice in best.items():
        for key in choice.edges:
            note(f"{arm.data}, {arm.method}, {arm.variation}: {key} is chosen at an end of its grid, {choice.words}")
    rest = [Task(arm, best[arm], seed) for arm in arms for seed in seeds]
    faults = run_all(folder, rest, jobs, note)
    for task, fault in faults.items():
        raise FedgeoError(f"{task.name}: {fault}")
    return [row(folder, arm, best[arm], len(tried[arm]), seeds) for arm in arms]


def run_all(folder: Path, tasks: Iterable[Task], jobs: int, note: Note) -> dict[Task, str]:
    """Run what is not finished yet; returns the errors of the runs that failed."""
    faults: dict[Task, str] = {}
    todo = []
    for task in dict.fromkeys(tasks):
        if not finished(folder, task):
            todo.append(task)
        elif (fault := read_summary(folder, task)["error"]) is not None:
            faults[task] = fault
    done = 0

    def ended(task: Task, fault: str | None) -> None:
        nonlocal done
        done += 1
        if fault is not None:
            faults[task] = fault
        note(f"{done}/{len(todo)} {task.name}: {fault or 'done'}")

    if jobs == 1:
        for task in todo:
            ended(task, run_one(folder, task))
        return faults
    planned: dict[Job, Task] = {}
    for task in todo:
        try:
            planned[job(folder, task)] = task
        except FedgeoError as error:
            ended(task, str(error))

    class Ends(Silent):
        def end(self, outcome: Outcome) -> None:
            ended(planned[outcome.job], outcome.error)

    run_jobs(list(planned), jobs, Ends())
    return faults


def job(folder: Path, task: Task) -> Job:
    """The run of a task, without figures: there are hundreds. Raises FedgeoError for what cannot be run."""
    return replace(plan(task.overrides, task.name, folder / task.name), figures=False)


def run_one(folder: Path, task: Task) -> str | None:
    """One run to its end; returns its error, None where it completed."""
    try:
        run_in_process(job(folder, task), lambda _: None)
    except Exception as error:
        return str(error)
    return None


def finished(folder: Path, task: Task) -> bool:
    """Whether the run is there and complete, or has diverged, as it would again; what else is left of it is removed.

    Raises FedgeoError where it was made with other settings than the task's.
    """
    place = folder / task.name
    try:
        summary = json.loads((place / "summary.json").read_text())
        complete = summary["status"] == "completed" or DIVERGED in (summary["error"] or "")
        made = settings((place / "config.yaml").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):  # not there, or damaged
        complete = False
    if not complete:
        shutil.rmtree(place, ignore_errors=True)
        return False
    if made != settings(dump(load(task.overrides))):
        raise FedgeoError(f"{place}: it was run with other settings; give another folder")
    return True


def settings(text: str) -> list[str]:
    """A configuration's lines without where it was run."""
    return [line for line in text.splitlines() if not line.startswith(("run_dir:", "sweep_dir:", "cache_dir:"))]


def read_summary(folder: Path, task: Task) -> dict[str, Any]:
    """The summary of a finished run."""
    found: dict[str, Any] = json.loads((folder / task.name / "summary.json").read_text())
    return found


def choose(folder: Path, arm: Arm, tried: Sequence[Choice], seeds: Sequence[int], faults: Mapping[Task, str]) -> Choice:
    """The setting with the best validation score, the first among equals."""
    scores: dict[Choice, float] = {}
    for choice in tried:
        tasks = [Task(arm, choice, seed) for seed in seeds]
        if not any(task in faults for task in tasks):
            scores[choice] = math.fsum(validation(folder / task.name, arm) for task in tasks) / len(tasks)
    if not scores:
        fault = faults[Task(arm, tried[0], seeds[0])]
        raise FedgeoError(f"{arm.data}, {arm.method}, {arm.variation}: failed at every setting: {fault}")
    return max(scores, key=lambda choice: scores[choice])


def validation(run_dir: Path, arm: Arm) -> float:
    """The mean validation score of the rounds that count in the end: the last ones, or a centralised run's best."""
    summary = json.loads((run_dir / "summary.json").read_text())
    key = f"val_{summary['metric']}"
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    if arm.algorithm.centralised:
        lines = [line for line in lines if line["round"] == summary["best_round"]]
    found = [line[key] for line in lines[-WINDOW:] if key in line]
    if not found:
        raise FedgeoError(f"{run_dir.name}: there is no validation to choose by: set data.val_fraction above 0")
    return math.fsum(found) / len(found)


def row(folder: Path, arm: Arm, choice: Choice, tried: int, seeds: Sequence[int]) -> Row:
    """What the runs of one arm come to."""
    found = [read_summary(folder, Task(arm, choice, seed)) for seed in seeds]
    seconds, up, down = (math.fsum(s[key] for s in found) / len(found) for key in COSTS)
    over = [(s["mean_over_domains"], s["std_over_domains"]) for s in found if len(s["by_domain"]) > 1]
    return Row(arm, choice, tried, tuple(s["final"] for s in found), tuple(over), seconds, up, down)
