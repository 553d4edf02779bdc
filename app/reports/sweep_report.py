"""report.html of many runs, a sweep or any others: the tables, and figures over seeds.

The page depends on the run directories alone: made twice, it is the same file. Every figure in it is followed to run
directories by the number of its arm, in the table of every run.
"""

import html
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ..common.files import write_atomic
from ..runs.reader import find
from . import figures
from .arms import Arm
from .html import folded, page, picture
from .overview import Overview
from .tables import Table, as_html

TOGETHER = 8  # arms that one figure can hold and still be read


def write(folder: Path) -> Path:
    """Write ``report.html`` into ``folder`` from the runs below it, and return its path."""
    target = folder / "report.html"
    write_atomic(target, document(Overview(folder.absolute(), find([folder]))).encode())
    return target


def document(overview: Overview) -> str:
    """The page as a string."""
    runs = overview.runs
    completed = sum(run.completed for run in runs)
    experiments = dict.fromkeys(str(run.config.get("experiment", "?")) for run in runs)
    title = f"{', '.join(experiments)}: {len(overview.arms)} arms, {completed} of {len(runs)} runs completed"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if completed < len(runs):
        parts.append(
            f'<p class="failed"><strong>{len(runs) - completed} runs did not complete</strong> and count in no figure; '
            "the table of every run says why.</p>"
        )
    if overview.arms:
        with tempfile.TemporaryDirectory() as scratch:
            parts += _of_all(overview, Path(scratch))
    parts += [_of_one_run(overview), _every_run(overview)]
    return page(title, "".join(parts))


def _of_all(overview: Overview, drawn: Path) -> list[str]:
    """The tables over seeds, each with the figures that belong to it."""
    parts = [as_html(overview.results()), _convergence(overview, drawn), _domains(overview, drawn)]
    if overview.pairs:
        parts += [as_html(overview.differences()), _differences(overview, drawn)]
    parts += map(as_html, overview.papers())
    return [*parts, as_html(overview.costs()), _against_bytes(overview, drawn), _confusions(overview, drawn)]


def _groups(arms: Sequence[Arm]) -> list[tuple[str, list[Arm]]]:
    """The arms in groups that fit into one figure: all, or one group for each value of their first choice."""
    if len(arms) <= TOGETHER or not arms[0].choices:
        return [("", list(arms))]
    key = next(iter(arms[0].choices))
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(f"{key.removesuffix('.name')}={arm.choices[key]}", []).append(arm)
    return list(groups.items())


def _named(group: str, caption: str) -> str:
    return f"{caption} ({group})" if group else caption


def _convergence(overview: Overview, drawn: Path) -> str:
    pictures = []
    for group, arms in _groups(overview.arms):
        series = {arm.label: [run.rounds for run in arm.runs if run.rounds] for arm in arms}
        series = {label: lines for label, lines in series.items() if lines}
        if any(len(lines[0]) > 1 for lines in series.values()):
            figures.curves_compare(series, drawn / "curves.png", _metric(arms))
            caption = "Score by round: mean over seeds, and a band of one standard deviation"
            pictures.append(picture(drawn / "curves.png", _named(group, caption)))
    return "".join(pictures)


def _domains(overview: Overview, drawn: Path) -> str:
    pictures = []
    for group, arms in _groups(overview.arms):
        bars = {}
        for arm in arms:
            by_domain = [run.summary.get("by_domain") or {} for run in arm.runs]
            shared = [name for name in by_domain[0] if all(name in each for each in by_domain)]
            bars[arm.label] = {name: [each[name] for each in by_domain] for name in shared}
        if max(map(len, bars.values()), default=0) > 1:
            figures.domain_bars(bars, drawn / "domains.png")
            caption = "Accuracy by domain: mean over seeds, and one standard deviation"
            pictures.append(picture(drawn / "domains.png", _named(group, caption)))
    return "".join(pictures)


def _differences(overview: Overview, drawn: Path) -> str:
    table = overview.differences().rows
    rows = [
        (f"{row[0]} ({row[1]})" if row[1] != "-" else str(row[0]), pair.mean, pair.half_width)
        for row, pair in zip(table, overview.pairs, strict=True)
    ]
    figures.differences(rows, drawn / "differences.png", overview.metric)
    return picture(drawn / "differences.png", "The same differences with their intervals; at 0 there is none")


def _against_bytes(overview: Overview, drawn: Path) -> str:
    pictures = []
    for group, arms in _groups(overview.arms):
        series = {}
        for arm in arms:
            sent = [
                (up + down, score)
                for run in arm.runs
                if (up := run.figure("bytes_up")) is not None
                and (down := run.figure("bytes_down")) is not None
                and (score := run.figure("final")) is not None
                and up + down > 0
            ]
            if sent:
                series[arm.label] = ([s for s, _ in sent], [score for _, score in sent])
        if len(series) > 1:
            figures.against_bytes(series, drawn / "bytes.png", _metric(arms))
            pictures.append(picture(drawn / "bytes.png", _named(group, "Score against what was sent")))
    return "".join(pictures)


def _confusions(overview: Overview, drawn: Path) -> str:
    """The confusion of each arm's final models, summed over seeds."""
    folds = []
    for arm in overview.arms:
        found = [read for run in arm.runs if isinstance(read := run.read_json("confusion.json"), dict)]
        if not found or any(each["classes"] != found[0]["classes"] for each in found):
            continue
        total = np.sum([each["counts"] for each in found], axis=0)
        figures.confusion(total, found[0]["classes"], drawn / "confusion.png")
        caption = f"Confusion of the final models of {len(found)} seeds, summed"
        folds.append(folded(f"Confusion: {arm.label}", picture(drawn / "confusion.png", caption)))
    return f"<h2>Confusion</h2>{''.join(folds)}" if folds else ""


def _of_one_run(overview: Overview) -> str:
    """What depends on the partition of one seed: who holds what, and how alike the shapes are."""
    parts = []
    for name, caption in (
        ("label_distribution.png", "Samples of each class at each client"),
        ("similarity.png", "Similarity of the class shapes between two domains"),
    ):
        for run in overview.runs:
            if run.completed and (run.path / "figures" / name).is_file():
                where = f"{caption}, in the run {overview.path(run.path)}"
                parts.append(picture(run.path / "figures" / name, where))
                break
    return f"<h2>Of one seed</h2>{''.join(parts)}" if parts else ""


def _every_run(overview: Overview) -> str:
    """The table of every run, with links to their own pages where these lie below the page."""
    table = overview.every()
    made = as_html(Table("", table.head, table.rows, table.percent))
    for run in overview.runs:
        name = html.escape(overview.path(run.path))
        if run.path.is_relative_to(overview.root) and (run.path / "report.html").is_file():
            link = f'<td><a href="{quote(overview.path(run.path))}/report.html">{name}</a></td>'
            made = made.replace(f"<td>{name}</td>", link, 1)
    return f"<h2>Every run</h2>{made}"


def _metric(arms: Sequence[Arm]) -> str:
    return arms[0].metric
