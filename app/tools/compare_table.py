"""The table of a comparison: every arm beside its best control, for people and for other programs."""

import csv
import io
import math
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from ..common.printable import cell
from ..reports.arms import half_width
from .compare import Row
from .terminal import print_whole
from .tuning import RATE, shown


def control(line: Row, rows: Sequence[Row]) -> Row | None:
    """The best control for ``line`` among the rows of its data: of its own method's where that has any, else of all.

    None where there is none but the line itself.
    """
    found = [row for row in rows if row.arm.data == line.arm.data and row.arm.control]
    found = [row for row in found if row.arm.method == line.arm.method] or found
    best = max(found, key=lambda row: row.mean, default=None)
    return None if best is line else best


def points(line: Row, other: Row) -> tuple[float, float | None]:
    """Percentage points between two rows, paired by seed: the mean and the half width of its 95 % interval."""
    found = [100 * (a - b) for a, b in zip(line.scores, other.scores, strict=True)]
    return math.fsum(found) / len(found), half_width(found)


def difference(line: Row, other: Row) -> str:
    """``points`` in words, with the name of the other row."""
    mean, width = points(line, other)
    spread = "" if width is None else f" ± {width:.1f}"
    return f"{mean:+.1f}{spread} ({other.arm.method} {other.arm.variation})"


HEAD = ("method", "variation", "chosen", "accuracy", "less best control", "AVG", "STD", "CPU s", "MB up", "MB down")
LEFT = 3  # columns of words
NOTE = (
    "chosen: by validation on other seeds, among as many settings for every arm; a star marks a value at an end of "
    "what was tried. accuracy, AVG and STD (mean and deviation over domains): in %, ± standard deviation over seeds. "
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
        line.choice.words,
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
            table.add_column(head, justify="right" if i >= LEFT else "left")
        for line in rows:
            if line.arm.data == data:
                table.add_row(*cells(line, rows))
        print_whole(table)


def markdown(rows: Sequence[Row]) -> str:
    """A table for each data set."""
    parts = []
    for data in dict.fromkeys(line.arm.data for line in rows):
        table = [HEAD, (*["---"] * LEFT, *["---:"] * (len(HEAD) - LEFT))]
        table += [cells(line, rows) for line in rows if line.arm.data == data]
        parts.append(f"### {data}\n\n" + "\n".join(f"| {' | '.join(each)} |" for each in table) + "\n")
    return "\n".join((*parts, f"{NOTE}\n"))


COLUMNS = (
    *("data", "method", "variation", "settings_tried", "lr", "coefficients", "at_grid_edge"),
    *("seeds", "accuracy", "accuracy_std", "control", "control_accuracy", "gain", "gain_half_width"),
    *("mean_over_domains", "std_over_domains", "cpu_seconds", "bytes_up", "bytes_down", "accuracies"),
)


def as_csv(rows: Sequence[Row]) -> str:
    """All rows under ``COLUMNS``.

    Accuracies are shares, gains points over the control, paired by seed, with half their 95 % interval; what does not
    apply is empty.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(cell, _values(line, rows)) for line in rows)
    return file.getvalue()


def _values(line: Row, rows: Sequence[Row]) -> list[str]:
    chosen = dict(line.choice.values)
    rate = chosen.pop(RATE, "")
    best = control(line, rows)
    gain, width = (None, None) if best is None else points(line, best)
    means, deviations = zip(*line.over_domains, strict=True) if line.over_domains else ((), ())
    figures = (
        *(line.mean, float(np.std(line.scores, ddof=1)) if len(line.scores) > 1 else None),
        *("" if best is None else f"{best.arm.method} {best.arm.variation}", None if best is None else best.mean),
        *(gain, width, *(float(np.mean(each)) if each else None for each in (means, deviations))),
        *(line.seconds, line.up, line.down),
    )
    return [
        *(line.arm.data, line.arm.method, line.arm.variation, str(line.tried), shown(rate)),
        *("; ".join(f"{key}={shown(value)}" for key, value in chosen.items()), "; ".join(line.choice.edges)),
        str(len(line.scores)),
        *("" if value is None else value if isinstance(value, str) else f"{value:.6g}" for value in figures),
        " ".join(f"{score:.6g}" for score in line.scores),
    ]
