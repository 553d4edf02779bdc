"""What a person sees in the terminal: a live progress display, tables and results."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from ..common.printable import shown
from ..launch.job import Job
from ..launch.workers import Outcome
from ..reports.tables import SIMULATED
from ..reports.tables import Table as Words
from .command import say

WIDTH, WIDEST = 110, 200  # that a table is given at least, and at most where it needs it
LINE_SECONDS = 5.0  # between lines where the output is no terminal


class Progress:
    """Runs under way: on a terminal a bar each, and one for all of them; elsewhere a line now and then.

    total: how many runs there are. With more than one, each leaves a line when it has ended.
    """

    def __init__(self, total: int = 1) -> None:
        self.console = Console()
        self.total = total
        self.ended = 0
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.all = self.bars.add_task("runs", total=total, score="") if total > 1 else None
        self.tasks: dict[Job, Any] = {}
        self.printed = time.monotonic()

    def __enter__(self) -> "Progress":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def note(self, text: str, job: Job | None = None) -> None:
        """Say what is going on; of one run among several only now and then (its log.txt has all of it)."""
        if job is None or self.total == 1:
            self.console.print(shown(text), soft_wrap=True, markup=False, highlight=False)
        elif not self.bars.disable:
            self.bars.update(self.tasks[job], score=text)
        else:
            self._now_and_then(f"{_name(job)}: {text}")

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self.printed > LINE_SECONDS:
            self.printed = time.monotonic()
            self.note(text)

    def begin(self, job: Job) -> None:
        """A run begins."""
        if self.bars.disable and self.total == 1:
            self.note(f"{_name(job)}: starting")
        self.tasks[job] = self.bars.add_task(_name(job), total=job.rounds, score="starting")

    def round(self, job: Job, row: dict[str, Any]) -> None:
        """A round of the run has been evaluated."""
        metric = job.config.metric.name
        score = f"{metric} {row[metric]:.4f}"
        self.bars.update(self.tasks[job], completed=row["round"], score=score)
        if self.bars.disable:
            if self.total == 1 and row["round"] == job.rounds:
                self.printed = 0.0
            self._now_and_then(f"{_name(job)}: round {row['round']}/{job.rounds}  {score}")

    def end(self, outcome: Outcome) -> None:
        """The run has ended, well or with an error."""
        self.ended += 1
        if self.total == 1:
            if outcome.error is not None:
                self.bars.update(self.tasks[outcome.job], score="failed")
                self.note(f"{_name(outcome.job)}: failed: {outcome.error}")
            return
        self.bars.remove_task(self.tasks.pop(outcome.job))
        assert self.all is not None
        self.bars.update(self.all, completed=self.ended)
        result = f"failed: {outcome.error}"
        if outcome.summary is not None:
            result = f"{outcome.summary['metric']} {outcome.summary['final']:.4f}, {outcome.summary['seconds']:.1f} s"
        self.note(f"[{self.ended}/{self.total}] {_name(outcome.job)}: {result}")


def _name(job: Job) -> str:
    return job.label or job.config.experiment


class Encoding:
    """How far encoding has come: a bar on a terminal, elsewhere a line now and then. Call it with (done, total)."""

    def __init__(self) -> None:
        self.console = Console()
        columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars = Bars(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bars.add_task("encoding", total=None)
        self.printed = time.monotonic()

    def __enter__(self) -> "Encoding":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, done: int, total: int) -> None:
        self.bars.update(self.task, completed=done, total=total)
        now = time.monotonic()
        if self.bars.disable and now - self.printed > LINE_SECONDS:
            self.printed = now
            self.console.print(f"encoded {done} of {total} images", markup=False, highlight=False)


def show_summaries(named: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """The runs side by side: one row each."""
    table = Table()
    table.add_column("run", no_wrap=True)
    metrics = {summary["metric"] for _, summary in named}
    heads = (" / ".join(sorted(metrics)), "best", "at round", "added", "perturbation", "seconds", "MB up", "MB down")
    for head in heads:
        table.add_column(head, justify="right")
    for name, summary in named:
        best = summary["best"]
        table.add_row(
            name,
            f"{100 * summary['final']:.2f} %",
            "-" if best is None else f"{100 * best:.2f} %",
            str(summary["best_round"] or "-"),
            f"{summary['added_samples']:,}",
            f"{summary['perturbation_rms']:.3f}",
            f"{summary['seconds']:.1f}",
            f"{summary['bytes_up'] / 1e6:.2f}",
            f"{summary['bytes_down'] / 1e6:.2f}",
        )
    meanings = {summary["metric"]: summary.get("final_of") for _, summary in named}
    notes = [f"{metric}: {what}; best: at the best validation round" for metric, what in meanings.items() if what]
    if any(summary.get("simulated") for _, summary in named):
        notes.append(SIMULATED)
    table.caption, table.caption_justify = "\n".join(notes), "left"
    print_whole(table)
    for name, summary in named:
        for warning in summary.get("warnings", ()):
            say(f"warning: {name}: {warning}")


def show_tables(tables: Sequence[Words]) -> None:
    """Tables of a report, as the terminal shows them."""
    for words in tables:
        table = Table(title=words.title, title_justify="left", caption="\n".join(words.notes), caption_justify="left")
        for head, right in zip(words.head, words.right, strict=True):
            table.add_column(shown(head), justify="right" if right else "left")
        for row in words.rows:
            table.add_row(*map(escape, words.words(row)))
        print_whole(table)


def print_whole(table: Table) -> None:
    """Print a table with its figures unbroken, wider than the terminal where that takes it."""
    needed = Console(width=WIDEST).measure(table).maximum
    Console(width=max(Console().width, WIDTH, needed)).print(table)
