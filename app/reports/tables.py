"""Tables of words and figures, written as plain text, Markdown, LaTeX, CSV or HTML."""

import csv
import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..common import printable
from ..common.printable import shown
from .arms import Spread

WIDTH = 110  # characters of a note in plain text
SIMULATED = "Simulated recordings: these figures say nothing about real EEG."
Cell = str | int | float | Spread | None
"""Words; whole numbers; figures; mean and standard deviation; nothing."""


@dataclass(frozen=True)
class Table:
    """rows below head. percent: columns (by number) of shares 0..1, which people are shown in per cent.

    digits: decimals of figures. notes: lines below the table.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    percent: frozenset[int] = frozenset()
    digits: int = 2
    notes: tuple[str, ...] = ()

    def words(self, row: Sequence[Cell]) -> list[str]:
        """The cells of a row as people read them."""
        return [self.show(cell, 100 if i in self.percent else 1) for i, cell in enumerate(row)]

    def show(self, cell: Cell, factor: int = 1) -> str:
        if cell is None:
            return "-"
        if isinstance(cell, str):
            return shown(cell)
        if isinstance(cell, Spread):
            mean = f"{factor * cell.mean:.{self.digits}f}"
            return mean if cell.std is None else f"{mean} ± {factor * cell.std:.{self.digits}f}"
        if isinstance(cell, int) and factor == 1:
            return f"{cell:,}"
        return f"{factor * cell:.{self.digits}f}"

    @property
    def right(self) -> list[bool]:
        """For each column whether it holds figures, which stand to the right."""
        columns = [[row[i] for row in self.rows if row[i] is not None] for i in range(len(self.head))]
        return [bool(cells) and not any(isinstance(cell, str) for cell in cells) for cells in columns]


def text(tables: Sequence[Table]) -> str:
    """For a terminal or a mail."""
    return "\n".join(_text(table) for table in tables)


def _text(table: Table) -> str:
    lines = [[*map(shown, table.head)], *map(table.words, table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.head))]
    aligned = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, table.right, strict=True)
        ).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    notes = [textwrap.fill(note, WIDTH) for note in table.notes]
    parts = [table.title, "", aligned[0], rule, *aligned[1:], *notes]
    return "\n".join(parts) + "\n"


def markdown(tables: Sequence[Table]) -> str:
    """For a repository's page."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    rule = ["---:" if right else "---" for right in table.right]
    lines = [list(table.head), rule, *map(table.words, table.rows)]
    body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
    notes = ["", *(f"{note}  " for note in table.notes)] if table.notes else []
    return "\n".join([f"### {table.title}", "", *body, *notes]) + "\n"


def latex(tables: Sequence[Table]) -> str:
    r"""For a paper, which needs \usepackage{booktabs}."""
    return "\n".join(["% needs \\usepackage{booktabs}", *map(_latex, tables)])


def _latex(table: Table) -> str:
    columns = "".join("r" if right else "l" for right in table.right)
    lines = [" & ".join(map(escape, line)) + r" \\" for line in (table.head, *map(table.words, table.rows))]
    notes = [rf"\par\footnotesize {escape(note)}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(table.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


_LATEX: Mapping[str, str] = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
}


def escape(words: str) -> str:
    """Words with everything that LaTeX would read as a command, escaped; a minus before a number is a minus."""
    safe = re.sub(r"[&%$#_{}\\~^<>±−]", lambda found: _LATEX[found[0]], words)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", safe)


def comma_separated(tables: Sequence[Table]) -> str:
    """For another program: one table, without notes; shares stay 0..1; a mean and its deviation have a column each."""
    (table,) = tables
    split = [any(isinstance(row[i], Spread) for row in table.rows) for i in range(len(table.head))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for head, double in zip(table.head, split, strict=True) for name in _names(head, double)])
    for row in table.rows:
        writer.writerow([value for cell, double in zip(row, split, strict=True) for value in _values(cell, double)])
    return out.getvalue()


def _plain(head: str) -> str:
    """A column's name without its unit, for shares stay shares."""
    return head.removesuffix(" %").replace(" ", "_")


def _names(head: str, double: bool) -> list[str]:
    plain = printable.cell(_plain(head))
    return [f"{plain}_mean", f"{plain}_std"] if double else [plain]


def _values(cell: Cell, double: bool) -> list[str]:
    if isinstance(cell, Spread):
        return [repr(cell.mean), "" if cell.std is None else repr(cell.std)]
    plain = "" if cell is None else printable.cell(cell) if isinstance(cell, str) else repr(cell)
    return [plain, ""] if double else [plain]


def as_html(table: Table) -> str:
    """The table with its title as a caption; wide ones scroll by themselves."""
    right = table.right
    line = "".join(_cell("th", cell, r, ' scope="col"') for cell, r in zip(table.head, right, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", cell, r) for cell, r in zip(table.words(row), right, strict=True)) + "</tr>"
        for row in table.rows
    )
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in table.notes)
    title = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{line}</tr></thead><tbody>{body}</tbody></table></div>{notes}'


def _cell(tag: str, words: str, right: bool, more: str = "") -> str:
    return f"<{tag}{more}{' class=n' if right else ''}>{html.escape(words)}</{tag}>"


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
