"""What a person sees in the terminal: a live progress display, and tables."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from app.report import SEEDS_HEAD, over_seeds

WIDTH = 110  # that a table needs at least
LINE_SECONDS = 5.0  # between lines where the output is no terminal


def say(text: str) -> None:
    """One plain line, never wrapped: paths stay whole for copying."""
    Console(stderr=text.startswith(("error", "interrupted"))).print(
        text, soft_wrap=True, markup=False, highlight=False
    )


class Progress:
    """One bar a run on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self.console = Console()
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task: Any = None
        self.name = self.metric = ""
        self.rounds = 0
        self.told = 0.0

    def __enter__(self) -> "Progress":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def note(self, text: str) -> None:
        """Say what is going on."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def begin(self, name: str, rounds: int, metric: str) -> None:
        """A run begins."""
        self.name, self.rounds, self.metric = name, rounds, metric
        if self.bars.disable:
            self.note(f"{name}: starting")
        self.task = self.bars.add_task(name, total=rounds, score="starting")

    def round(self, row: dict[str, Any]) -> None:
        """A round of the run has been evaluated."""
        score = f"{self.metric} {row[self.metric]:.4f}"
        self.bars.update(self.task, completed=row["round"], score=score)
        now = time.monotonic()
        if self.bars.disable and (now - self.told > LINE_SECONDS or row["round"] == self.rounds):
            self.told = now
            self.note(f"{self.name}: round {row['round']}/{self.rounds}  {score}")

    def end(self, failure: str | None = None) -> None:
        """The run has ended, well or with ``failure``."""
        if failure is not None:
            self.bars.update(self.task, score="failed")
            self.note(f"{self.name}: {failure}")


def show_summaries(named: Sequence[tuple[str, dict[str, Any]]]) -> None:
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
    console = Console(width=max(Console().width, WIDTH))
    console.print(table)
    if grouped := over_seeds([(name.split(" "), summary) for name, summary in named]):
        seeds = Table(title="over seeds: mean ± standard deviation (ddof 1)", title_justify="left")
        seeds.add_column(SEEDS_HEAD[0], no_wrap=True)
        for head in SEEDS_HEAD[1:]:
            seeds.add_column(head, justify="right")
        for row in grouped:
            seeds.add_row(*row)
        console.print(seeds)
