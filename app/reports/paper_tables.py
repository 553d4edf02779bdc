"""Runs in the layouts of the papers' tables: ours, and the paper's where the settings agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.errors import FedgeoError
from ..config.compose import load
from ..runs.reader import PLACES, Run, flatten
from .arms import Arm, Spread, show, spread
from .paper_layouts import LAYOUTS, Layout, Spot, spots
from .tables import Cell, Table

# what no result depends on, or what every site chooses for itself
FREE = (
    *PLACES,
    *("experiment", "variant", "seed", "engine", "device", "privacy"),
    *("data.path", "data.download", "encoder.batch_size", "encoder.checkpoint", "encoder.precision", "training.loop"),
    *("federation.clients_per_node", "federation.max_failures", "federation.deadline", "federation.hello_deadline"),
    "federation.ray_address",
)
NAMED = 6  # settings that differ, at most so many are named
ALIASES = {"caltech": ("caltech", "caltech10")}


@dataclass(frozen=True, eq=False)
class Found:
    """A cell that has runs. differs: the settings that stand in the way of the paper's number, ours and theirs."""

    layout: Layout
    spot: Spot
    arm: Arm
    ours: Spread
    differs: Mapping[str, tuple[str, str]]
    others: int

    @property
    def paper(self) -> Spread | None:
        """The paper's number, where it has one and the settings agree, in the unit of ``ours``."""
        number = self.spot.number
        if number is None or self.differs:
            return None
        printed = number if isinstance(number, Spread) else Spread(number, None, 1)
        unit = 100 if self.layout.percent else 1
        return Spread(printed.mean / unit, None if printed.std is None else printed.std / unit, printed.n)


def reproduced(arms: Sequence[Arm]) -> list[tuple[Layout, list[Found]]]:
    """For each layout that has runs among ``arms``, its cells that do."""
    filled = [(layout, [found for spot in spots(layout) if (found := _find(layout, spot, arms))]) for layout in LAYOUTS]
    return [(layout, found) for layout, found in filled if found]


def _find(layout: Layout, spot: Spot, arms: Sequence[Arm]) -> Found | None:
    """The arm that belongs in the cell: of several, the one whose settings are nearest to the paper's."""
    fitting = [arm for arm in arms if all(_setting(arm.runs[0], key) == value for key, value in spot.known_by.items())]
    best: tuple[Arm, Spread, dict[str, tuple[str, str]]] | None = None
    for arm in fitting:
        ours = spread([value for run in arm.runs if (value := figure(run, spot.figure)) is not None])
        if ours is None:
            continue
        differs = differences(arm.runs[0], spot.overrides)
        if best is None or len(differs) < len(best[2]):
            best = arm, ours, differs
    return None if best is None else Found(layout, spot, *best, others=len(fitting) - 1)


def _setting(run: Run, key: str) -> str:
    """A setting of a run as a cell asks for it; a preset for half participation is its whole one otherwise."""
    text = show(run.flat.get(key, ""))
    return text.removesuffix("_half") if key == "experiment" else text


def figure(run: Run, name: str) -> float | None:
    """A figure of a run, as a column of a layout names it; None where the run has it not."""
    by_domain = run.summary.get("by_domain") or {}
    if name.startswith("domain:"):
        wanted = name.removeprefix("domain:")
        return next((by_domain[alias] for alias in ALIASES.get(wanted, (wanted,)) if alias in by_domain), None)
    if name == "sample_std_over_domains":
        return float(np.std(list(by_domain.values()), ddof=1)) if len(by_domain) > 1 else None
    if name == "seconds":
        seconds = [line["seconds"] for line in run.rounds if line.get("seconds") is not None]
        return float(np.mean(seconds)) if seconds else None
    return run.figure(name)


def differences(run: Run, overrides: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Where the run's settings are not those of the paper's preset with ``overrides``: key -> (ours, the paper's)."""
    try:
        stated: dict[str, Any] = dict(flatten(load((*overrides, "variant=paper")).model_dump(mode="json")))
    except FedgeoError as error:  # the preset is gone or was renamed since
        return {"preset": ("-", str(error))}
    unused = "augmentation." if run.flat.get("augmentation.kind") == "none" else "covariances."
    keys = [
        key
        for key in sorted({*stated, *run.flat})
        if not any(key == free or key.startswith(f"{free}.") for free in FREE)
        and (key == "augmentation.kind" or not key.startswith(unused))
    ]
    pairs = {key: (show(run.flat.get(key)), show(stated.get(key))) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def as_table(layout: Layout, found: Sequence[Found]) -> Table:
    """The paper's table, with the rows and columns that have runs; the paper's number and the difference below ours."""
    places = {(cell.spot.row.label, cell.spot.column.label): cell for cell in found}
    columns = [column for column in layout.columns if any((r, column.label) in places for r in _rows(found))]
    rows: list[tuple[Cell, ...]] = []
    for label in _rows(found):
        line = [places.get((label, column.label)) for column in columns]
        rows.append((label, *(cell.ours if cell else None for cell in line)))
        papers = [cell.paper if cell else None for cell in line]
        if any(papers):
            rows.append(("  the paper's", *papers))
            gaps = [Spread(cell.ours.mean - cell.paper.mean, None, 1) if cell and cell.paper else None for cell in line]
            rows.append(("  difference", *gaps))
    percent = frozenset(range(1, len(columns) + 1)) if layout.percent else frozenset()
    return Table(
        layout.title, ("", *(column.label for column in columns)), tuple(rows), percent, notes=_notes(layout, found)
    )


def as_list(reproduced: Sequence[tuple[Layout, Sequence[Found]]], path: Any = str) -> Table:
    """The same cells, one a line, for another program. path: how a run directory is written."""
    rows: list[tuple[Cell, ...]] = []
    for layout, found in reproduced:
        unit = 100 if layout.percent else 1
        for cell in found:
            ours, paper = cell.ours, cell.paper
            rows.append(
                (
                    *(layout.name, cell.spot.row.label, cell.spot.column.label, len(cell.arm.runs)),
                    Spread(unit * ours.mean, None if ours.std is None else unit * ours.std, ours.n),
                    None if paper is None else unit * paper.mean,
                    None if paper is None else unit * (ours.mean - paper.mean),
                    "; ".join(f"{key}={a} (paper {b})" for key, (a, b) in cell.differs.items()),
                    " ".join(path(run.path) for run in cell.arm.runs),
                )
            )
    head = ("table", "row", "column", "seeds", "ours", "paper", "difference", "settings that differ", "runs")
    return Table("The papers' tables", head, tuple(rows))


def _rows(found: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(cell.spot.row.label for cell in found))


def _notes(layout: Layout, found: Sequence[Found]) -> tuple[str, ...]:
    """Why the paper's number is missing, what was chosen among several arms, and what the layout says itself."""
    notes = [layout.note] if layout.note else []
    if apart := [cell for cell in found if cell.differs and cell.spot.number is not None]:
        differing: dict[str, tuple[str, str]] = {}
        for cell in apart:
            differing |= {key: pair for key, pair in cell.differs.items() if key not in differing}
        words = [f"{key} {ours} (the paper's: {theirs})" for key, (ours, theirs) in list(differing.items())[:NAMED]]
        more = f", and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
        count = "no cell" if len(apart) == len(found) else f"{len(found) - len(apart)} of {len(found)} cells"
        notes.append(f"The paper's number stands beside {count}: settings differ: {', '.join(words)}{more}.")
    if any(cell.others for cell in found):
        notes.append("Where several settings were run, the cell has those nearest to the paper's.")
    return tuple(notes)
