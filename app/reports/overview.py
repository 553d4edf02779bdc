"""What a set of runs comes to, as tables: arms over seeds, pairs of arms, costs, the papers' tables, every run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..common.errors import FedgeoError
from ..runs.reader import Run
from .arms import CONFIDENCE, SHORT, Arm, Pair, Spread, arms, pairs, show
from .paper_tables import as_list, as_table, reproduced
from .tables import SIMULATED, Cell, Table

NAMES = ("results", "pairs", "costs", "papers", "runs")


@dataclass(frozen=True, eq=False)
class Overview:
    """The runs below ``root``, which paths are relative to. against: the value that others are compared with."""

    root: Path
    runs: Sequence[Run]
    against: str | None = None

    @cached_property
    def arms(self) -> list[Arm]:
        return arms(self.runs)

    @cached_property
    def pairs(self) -> list[Pair]:
        return pairs(self.arms, against=self.against)

    @property
    def metric(self) -> str:
        """What final and best are; 'final' where the runs have several metrics."""
        names = {arm.metric for arm in self.arms}
        return names.pop() if len(names) == 1 else "final"

    def path(self, path: Path) -> str:
        """A run directory from the root."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def tables(self, name: str | None = None) -> list[Table]:
        """All tables that have something to say, in reading order, or those called ``name``; FedgeoError for none."""
        made = {
            "results": [self.results()],
            "pairs": [self.differences()],
            "papers": self.papers(),
            "costs": [self.costs()],
            "runs": [self.every()],
        }
        filled = [table for key, tables in made.items() if name in (None, key) for table in tables if table.rows]
        if not filled:
            raise FedgeoError(f"{self.root}: no run has anything for the table {name}; the table runs lists them")
        return filled

    def for_programs(self, name: str) -> Table:
        """One table, where results and papers name the run directories behind each line."""
        if name == "results":
            return self.results(paths=True)
        if name == "papers":
            return as_list(reproduced(self.arms), self.path)
        return self.tables(name)[0]

    def results(self, *, paths: bool = False) -> Table:
        """A row an arm: mean and deviation over its seeds."""
        keys = list(self.arms[0].choices) if self.arms else []
        several = any(len(arm.runs[0].summary.get("by_domain") or {}) > 1 for arm in self.arms)
        figures = [("final", self.metric), ("best", "at best validation")]
        figures += [("mean_over_domains", "mean over domains"), ("std_over_domains", "STD over domains")] * several
        figures += [("f1_macro", "macro F1")] * (self.metric != "f1_macro")
        head = ["arm", *map(_short, keys), "seeds", *(f"{name} %" for _, name in figures)]
        head += ["added samples", "perturbation"]
        rows: list[tuple[Cell, ...]] = []
        for number, arm in enumerate(self.arms, 1):
            row: list[Cell] = [number, *(show(arm.choices[key]) for key in keys), len(arm.runs)]
            row += [arm.spread(key) for key, _ in figures]
            row += [_count(arm, "added_samples"), _mean(arm, "perturbation_rms")]
            rows.append((*row, " ".join(self.path(run.path) for run in arm.runs)) if paths else tuple(row))
        percent = frozenset(range(2 + len(keys), 2 + len(keys) + len(figures)))
        if paths:
            head.append("runs")
        return Table("Over seeds: mean ± standard deviation", tuple(head), tuple(rows), percent, notes=self._notes())

    def differences(self) -> Table:
        """Pairs of arms, seed by seed."""
        numbers = {id(arm): number for number, arm in enumerate(self.arms, 1)}
        rows: list[tuple[Cell, ...]] = [
            (
                f"{_short(pair.key)}: {show(pair.arm.choices[pair.key])} less {show(pair.other.choices[pair.key])}",
                ", ".join(f"{_short(k)} {show(v)}" for k, v in pair.arm.choices.items() if k != pair.key) or "-",
                f"{numbers[id(pair.arm)]} - {numbers[id(pair.other)]}",
                pair.mean,
                None if pair.half_width is None else pair.mean - pair.half_width,
                None if pair.half_width is None else pair.mean + pair.half_width,
                f"{pair.wins} of {len(pair.differences)}",
            )
            for pair in self.pairs
        ]
        level = f"{100 * CONFIDENCE:g} %"
        return Table(
            f"Differences in {self.metric}, paired by seed",
            ("difference", "where", "arms", "points", "from", "to", "seeds ahead"),
            tuple(rows),
            frozenset({3, 4, 5}),
            notes=(
                f"Percentage points; from .. to is the {level} interval of the mean difference (Student's t over the "
                "seeds that both arms have), each interval by itself, without correction for their number. It speaks "
                "of other seeds on these data, not of other data.",
            ),
        )

    def papers(self) -> list[Table]:
        """The papers' tables that some of the runs belong in."""
        return [as_table(layout, found) for layout, found in reproduced(self.arms)]

    def costs(self) -> Table:
        """What each arm took."""
        rows: list[tuple[Cell, ...]] = [
            (
                *(number, arm.label, _count(arm, "parameters"), _count(arm, "rounds")),
                *(_scaled(arm.spread(key), 1e-6) for key in ("bytes_up", "bytes_down")),
                *(arm.spread("seconds"), _count(arm, "peak_memory_mb")),
            )
            for number, arm in enumerate(self.arms, 1)
        ]
        head = ("arm", "settings", "parameters", "rounds", "MB up", "MB down", "seconds", "peak MB")
        return Table(
            "Costs",
            head,
            tuple(rows),
            notes=(
                "MB up and down are the array payload of all clients in a whole run. Seconds depend on the machine and "
                "on what else it did.",
            ),
        )

    def every(self) -> Table:
        """Every run directory, what it holds, and which arm it counts in."""
        counted = {run.path: number for number, arm in enumerate(self.arms, 1) for run in arm.runs}
        rows: list[tuple[Cell, ...]] = [
            (
                self.path(run.path),
                counted.get(run.path),
                run.seed,
                run.status,
                run.figure("final"),
                run.figure("best"),
                _best_round(run),
                _line(run.summary.get("error") or "; ".join(run.summary.get("warnings") or ())),
            )
            for run in self.runs
        ]
        scores = (f"{self.metric} %", "at best validation %")
        head = ("run directory", "arm", "seed", "status", *scores, "round", "error or warning")
        return Table("Every run", head, tuple(rows), frozenset({4, 5}))

    def _notes(self) -> tuple[str, ...]:
        notes = ["Standard deviations have divisor n - 1; a single seed has none."] if self.arms else []
        if simulated := sum(bool(run.summary.get("simulated")) for run in self.runs):
            notes.append(SIMULATED if simulated == len(self.runs) else f"{simulated} of the runs: {SIMULATED}")
        if missing := sum(not run.completed for run in self.runs):
            notes.append(f"{missing} of {len(self.runs)} runs did not complete and count nowhere above.")
        counted = sum(len(arm.runs) for arm in self.arms)
        if repeated := sum(run.completed for run in self.runs) - counted:
            notes.append(f"{repeated} runs repeat another's settings and seed; of those the last by path counts.")
        if len({run.code for arm in self.arms for run in arm.runs}) > 1:
            notes.append("The runs are of different versions of the code.")
        if len({arm.metric for arm in self.arms}) > 1:
            notes.append("The runs have different metrics: final is each run's own.")
        return tuple(notes)


def _short(key: str) -> str:
    return SHORT.get(key, key)


def _mean(arm: Arm, key: str) -> float | None:
    """The mean over seeds of a figure whose deviation nobody asks for."""
    found = arm.spread(key)
    return None if found is None else found.mean


def _count(arm: Arm, key: str) -> int | None:
    mean = _mean(arm, key)
    return None if mean is None else round(mean)


def _scaled(found: Spread | None, factor: float) -> Spread | None:
    if found is None:
        return None
    return Spread(factor * found.mean, None if found.std is None else factor * found.std, found.n)


def _best_round(run: Run) -> int | None:
    value = run.summary.get("best_round")
    return value if isinstance(value, int) else None


def _line(error: object, limit: int = 120) -> str | None:
    """An error on one line, shortened."""
    if not error:
        return None
    words = " ".join(str(error).split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"
