"""Many arms over many seeds: each tuned on validation over one grid, then all of them in one table.

An arm is a data set, a method and a variation of it (an augmentation, say). A run that is finished is never repeated:
the folder of results is all that a comparison knows, so that it can be interrupted, resumed and extended.
"""

import functools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from ..algorithms.base import Algorithm
from ..algorithms.registry import local_algorithm
from ..augmentation import registry as augmentation
from ..common.errors import FedgeoError
from ..config.compose import dump, load
from ..config.schema import Config
from ..launch.job import Job, plan, run_in_process
from ..launch.workers import Outcome, Silent, run_jobs
from ..reports.arms import half_width
from ..strategies.compatibility import first_head
from .terminal import print_whole

COSTS = ("cpu_seconds", "bytes_up", "bytes_down")
WINDOW = 5  # rounds whose validation score is averaged, as the test score is with metric.final=last5
Note = Callable[[str], None]


@dataclass(frozen=True)
class Arm:
    """One cell of the table. Each part has a name for people and the overrides that it stands for."""

    data: str
    method: str
    variation: str
    overrides: tuple[str, ...]

    @functools.cached_property
    def config(self) -> Config:
        return load(self.overrides)

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        return local_algorithm(self.config)

    @property
    def tuned(self) -> bool:
        """Whether a learning rate plays a part: a head in closed form has none."""
        return self.algorithm.trains or "lr" in self.config.method.settings

    @property
    def control(self) -> bool:
        """Whether it is plain federated training: from zero, on what clients hold or repetitions of it."""
        federated = self.algorithm.trains and self.algorithm.shares and not self.algorithm.centralised
        return federated and first_head(self.config) is None and augmentation.load(self.config.augmentation).control


@dataclass(frozen=True)
class Task:
    """One run: an arm at a learning rate and a seed."""

    arm: Arm
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The folder of the run, below the comparison's."""
        words = (self.arm.method, self.arm.variation, f"lr{self.rate:g}", f"seed{self.seed}")
        return f"{self.arm.data}/{'-'.join(words)}".replace(" ", "_")

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*self.arm.overrides, f"training.lr={self.rate:g}", f"seed={self.seed}", "engine=inprocess")


@dataclass(frozen=True)
class Row:
    """A line of the table: accuracies 0..1 (std has divisor n - 1), means over the seeds of the rest.

    seconds: of processor time, so that what else the machine does has no part in it.

    over_domains: each seed's mean and standard deviation (divisor n) over domains; empty where there is one domain.
    """

    arm: Arm
    rate: float
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

    Raises FedgeoError for an arm without an augmentation.
    """
    made = []
    for name, where in data.items():
        for words in chosen:
            try:
                method, augmentation, *more = words.split()
            except ValueError:
                raise FedgeoError(f"{words}: an arm is a method and an augmentation, then overrides") from None
            all_of_it = (*where, *shared, f"method={method}", f"augmentation={augmentation}", *more)
            if "init" in load(all_of_it).model.settings:  # rounds are compared from zero unless the arm says otherwise
                all_of_it = ("model.init=zeros", *all_of_it)
            made.append(Arm(name, method, " ".join((augmentation, *more)), all_of_it))
    return made


def compare(
    folder: Path,
    arms: Sequence[Arm],
    rates: Sequence[float],
    seeds: Sequence[int],
    tuning: Sequence[int],
    jobs: int = 1,
    note: Note = print,
) -> list[Row]:
    """Tune every arm over ``rates`` with the seeds ``tuning``, run the best over ``seeds``, return the rows.

    The best rate has the highest mean validation score over the last rounds of the runs of ``tuning``; a rate at
    which a run failed, by divergence for instance, is out. Test scores play no part in the choice. An arm without
    a learning rate runs at the first, whatever it is. ``jobs``: how many processes. Raises FedgeoError where an arm
    failed at every rate, and for a folder of other settings. What is given twice counts once.
    """
    arms, seeds = list(dict.fromkeys(arms)), list(dict.fromkeys(seeds))
    first = [Task(arm, rate, seed) for arm in arms if arm.tuned for rate in rates for seed in tuning]
    faults = run_all(folder, first, jobs, note)
    best = {arm: choose(folder, arm, rates, tuning, faults) if arm.tuned else rates[0] for arm in arms}
    rest = [Task(arm, best[arm], seed) for arm in arms for seed in seeds]
    faults = run_all(folder, rest, jobs, note)
    for task, fault in faults.items():
        raise FedgeoError(f"{task.name}: {fault}")
    return [row(folder, arm, best[arm], seeds) for arm in arms]


def run_all(folder: Path, tasks: Iterable[Task], jobs: int, note: Note) -> dict[Task, str]:
    """Run what is not finished yet; returns the errors of the runs that failed."""
    todo = [task for task in dict.fromkeys(tasks) if not finished(folder, task)]
    faults: dict[Task, str] = {}
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
            planned[plan(task.overrides, task.name, folder / task.name)] = task
        except FedgeoError as error:
            ended(task, str(error))

    class Ends(Silent):
        def end(self, outcome: Outcome) -> None:
            ended(planned[outcome.job], outcome.error)

    run_jobs(list(planned), jobs, Ends())
    return faults


def run_one(folder: Path, task: Task) -> str | None:
    """One run to its end; returns its error, None where it completed."""
    try:
        run_in_process(plan(task.overrides, task.name, folder / task.name), lambda _: None)
    except Exception as error:
        return str(error)
    return None


def finished(folder: Path, task: Task) -> bool:
    """Whether the run is there and complete; what a failed, interrupted or damaged one left is removed.

    Raises FedgeoError where it was made with other settings than the task's.
    """
    place = folder / task.name
    try:
        complete = json.loads((place / "summary.json").read_text())["status"] == "completed"
        made = settings((place / "config.yaml").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):  # not there, or damaged
        complete = False
    if not complete:
        shutil.rmtree(place, ignore_errors=True)
        return False
    if made != settings(dump(load(task.overrides))):
        raise FedgeoError(f"{place}: it was run with other settings; give another folder, or remove it")
    return True


def settings(text: str) -> list[str]:
    """A configuration's lines without where it was run."""
    return [line for line in text.splitlines() if not line.startswith(("run_dir:", "sweep_dir:", "cache_dir:"))]


def choose(folder: Path, arm: Arm, rates: Sequence[float], seeds: Sequence[int], faults: Mapping[Task, str]) -> float:
    """The rate with the best validation score, the smallest among equals."""
    scores: dict[float, float] = {}
    for rate in sorted(rates):
        tasks = [Task(arm, rate, seed) for seed in seeds]
        if not any(task in faults for task in tasks):
            scores[rate] = math.fsum(validation(folder / task.name, arm) for task in tasks) / len(tasks)
    if not scores:
        fault = faults[Task(arm, rates[0], seeds[0])]
        raise FedgeoError(f"{arm.data}, {arm.method}, {arm.variation}: failed at every learning rate: {fault}")
    return max(scores, key=lambda rate: scores[rate])


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


def row(folder: Path, arm: Arm, rate: float, seeds: Sequence[int]) -> Row:
    """What the runs of one arm come to."""
    found = [json.loads((folder / Task(arm, rate, seed).name / "summary.json").read_text()) for seed in seeds]
    seconds, up, down = (math.fsum(s[key] for s in found) / len(found) for key in COSTS)
    over = [(s["mean_over_domains"], s["std_over_domains"]) for s in found if len(s["by_domain"]) > 1]
    return Row(arm, rate, tuple(s["final"] for s in found), tuple(over), seconds, up, down)


def control(line: Row, rows: Sequence[Row]) -> Row | None:
    """The best control for ``line`` among the rows of its data: of its own method's where that has any, else of all.

    None where there is none but the line itself.
    """
    found = [row for row in rows if row.arm.data == line.arm.data and row.arm.control]
    found = [row for row in found if row.arm.method == line.arm.method] or found
    best = max(found, key=lambda row: row.mean, default=None)
    return None if best is line else best


def difference(line: Row, other: Row) -> str:
    """Percentage points between two rows, paired by seed: the mean and the half width of its 95 % interval."""
    points = [100 * (a - b) for a, b in zip(line.scores, other.scores, strict=True)]
    width = half_width(points)
    spread = "" if width is None else f" ± {width:.1f}"
    return f"{math.fsum(points) / len(points):+.1f}{spread} ({other.arm.method} {other.arm.variation})"


HEAD = ("method", "variation", "lr", "accuracy", "less best control", "AVG", "STD", "CPU s", "MB up", "MB down")
NOTE = (
    "accuracy, AVG and STD (mean and deviation over domains): in %, ± standard deviation over seeds. "
    "less best control: points above the better of none and repeat with the same method (of all methods, for a "
    "line without such), paired by seed, ± half the 95 % interval. CPU s: processor seconds of a run."
)


def cells(line: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """The row in words, under ``HEAD``."""
    best = control(line, rows)
    averages, deviations = zip(*line.over_domains, strict=True) if line.over_domains else ((), ())
    return (
        line.arm.method,
        line.arm.variation,
        f"{line.rate:g}" if line.arm.tuned else "-",
        over_seeds(line.scores),
        "-" if best is None else difference(line, best),
        over_seeds(averages),
        over_seeds(deviations),
        f"{line.seconds:.1f}",
        f"{line.up / 1e6:.2f}",
        f"{line.down / 1e6:.2f}",
    )


def over_seeds(values: Sequence[float]) -> str:
    """Shares in per cent, 'mean ± standard deviation' (divisor n - 1)."""
    if not values:
        return "-"
    spread = f" ± {100 * float(np.std(values, ddof=1)):.1f}" if len(values) > 1 else ""
    return f"{100 * math.fsum(values) / len(values):.1f}{spread}"


def show(rows: Sequence[Row]) -> None:
    """A table for each data set on the terminal."""
    for data in dict.fromkeys(line.arm.data for line in rows):
        table = Table(title=data)
        for i, head in enumerate(HEAD):
            table.add_column(head, justify="right" if i > 1 else "left")
        for line in rows:
            if line.arm.data == data:
                table.add_row(*cells(line, rows))
        print_whole(table)


def markdown(rows: Sequence[Row]) -> str:
    """A table for each data set."""
    parts = []
    for data in dict.fromkeys(line.arm.data for line in rows):
        table = [HEAD, ("---", "---", *["---:"] * (len(HEAD) - 2))]
        table += [cells(line, rows) for line in rows if line.arm.data == data]
        parts.append(f"### {data}\n\n" + "\n".join(f"| {' | '.join(each)} |" for each in table) + "\n")
    return "\n".join((*parts, f"{NOTE}\n"))
