"""The figures of a run and of a comparison, as PNG files.

Drawn without pyplot, so that figures share nothing and their bytes depend on the content alone. Colours are
Okabe and Ito's and viridis, told apart with any colour vision; lines also differ in their strokes, for grey
print. Accuracies and F1 come in as 0..1 and are shown in per cent. Long names are shortened in the middle.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator, PercentFormatter

from .html import DPI

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
STROKES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ABSENT = "#D9D9D9"  # a cell without a value
GRID = "#EBEBEB"
_NAMES = {
    "accuracy": "accuracy",
    "f1_macro": "macro F1",
    "loss": "cross-entropy",
    "mean_over_domains": "mean accuracy",
}

Round = Mapping[str, Any]


def curves(rounds: Sequence[Round], path: str | Path, metric: str = "accuracy") -> None:
    """Convergence of one run: the metric (test, validation) and the loss (also of training) by round.

    rounds: lines of rounds.jsonl; a curve is drawn for the keys they have, with a gap where a value is
    missing.
    """
    figure = _figure(8.0, 3.4)
    for axes, key in zip(figure.subplots(1, 2), (metric, "loss"), strict=True):
        for i, (prefix, label) in enumerate((("", "test"), ("val_", "validation"), ("train_", "training"))):
            x, y = _series(rounds, prefix + key)
            if np.isfinite(y).any():
                axes.plot(x, y, label=label, **_line(i, len(x)))
        _by_round(axes, key)
        if axes.get_lines():
            axes.legend(frameon=False)
    _save(figure, path)


def curves_compare(series: Mapping[str, Sequence[Sequence[Round]]], path: str | Path, metric: str = "accuracy") -> None:
    """Convergence of several methods: the mean over runs, and a band of one standard deviation (ddof 1).

    series: for each label the runs (seeds), each a list of lines of rounds.jsonl. Only rounds that every run
    of a label has evaluated are drawn; a label with one run has no band.
    """
    figure = _figure(7.5, 4.0)
    axes = figure.subplots()
    for i, (label, runs) in enumerate(series.items()):
        x, values = _aligned(runs, metric)
        if not len(x):
            continue
        mean = values.mean(0)
        axes.plot(x, mean, label=_short(label), **_line(i, len(x)))
        if len(runs) > 1:
            std = values.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=PALETTE[i % len(PALETTE)], alpha=0.18, linewidth=0)
    _by_round(axes, metric)
    _legend(figure, axes)
    _save(figure, path)


def against_alone(alone: Sequence[float], own: Sequence[float], path: str | Path, label: str) -> None:
    """A dot a client: its accuracy alone, and with ``label``; above the diagonal it gains."""
    figure = _figure(4.2, 4.0)
    axes = figure.subplots()
    least = min(*alone, *own, 1.0)
    low = max(0.0, least - 0.05)
    axes.plot([low, 1], [low, 1], color="0.6", linewidth=1)
    axes.scatter(alone, own, s=28, alpha=0.8)
    axes.set(xlabel="accuracy alone", ylabel=f"accuracy of {label}", xlim=(low, 1.01), ylim=(low, 1.01))
    axes.set_aspect("equal")
    _save(figure, path)


def label_distribution(
    counts: np.ndarray, classes: Sequence[str], path: str | Path, clients: Sequence[str] | None = None
) -> None:
    """Who holds how many samples of each class: a bubble for each client and class, its area the count.

    counts: int (K, C). clients: K names for the rows, by default their numbers. The colour is the count too,
    on a logarithmic scale, so that small counts can be told apart; no bubble is no sample.
    """
    counts = np.asarray(counts)
    n_clients, n_classes = counts.shape
    names = [f"client {k}" for k in range(n_clients)] if clients is None else clients
    rows = [f"{_short(name)}  ({total})" for name, total in zip(names, counts.sum(1), strict=True)]
    columns = [_short(name) for name in classes]
    width, height = _cell(n_classes), _cell(n_clients)
    figure = _figure(
        max(width * n_classes, 2.5) + _room(rows, height) + 1.2,
        max(height * n_clients, 1.2) + _room(columns, width) + 0.3,
    )
    axes = figure.subplots()
    most = max(int(counts.max(initial=0)), 2)
    # As wide as a cell allows; in a fine grid wider, as large counts are rare there.
    diameter = 72 * max(0.95 * min(max(width, height), 1.8 * min(width, height)), 0.2)
    k, c = np.nonzero(counts)
    held = counts[k, c]
    order = np.argsort(-held, kind="stable")  # small bubbles lie on top of large ones
    bubbles = axes.scatter(
        c[order],
        k[order],
        s=np.maximum(diameter**2 * held / most, 2.0)[order],
        c=held[order],
        cmap=ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1, 256))),
        norm=LogNorm(1, most),
        alpha=0.9,
        edgecolors="white",
        linewidths=0.3,
    )
    axes.set(xlim=(-0.7, n_classes - 0.3), ylim=(n_clients - 0.3, -0.7))
    axes.grid(color=GRID, linewidth=0.5)
    _name_ticks(axes, "x", columns, width)
    _name_ticks(axes, "y", rows, height)
    axes.set(xlabel="class", ylabel="client (samples)")
    _colour_bar(figure, bubbles, axes, "samples of the class", format=LogFormatter(minor_thresholds=(2, 0.5)))
    _save(figure, path)


def similarity_heatmap(
    matrix: np.ndarray,
    rows: Sequence[str],
    cols: Sequence[str],
    path: str | Path,
    row_title: str = "class",
    col_title: str = "class",
) -> None:
    """The similarity of every pair of geometric shapes, float (R, C), from 0 up; NaN (no shape) is grey.

    rows, cols: the classes' names; row_title, col_title: the domains they belong to.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    figure, axes = _heatmap(matrix, rows, cols, "viridis", "similarity", [[f"{v:.2f}" for v in r] for r in matrix])
    axes.set(xlabel=_short(col_title), ylabel=_short(row_title))
    _save(figure, path)


def confusion(matrix: np.ndarray, classes: Sequence[str], path: str | Path) -> None:
    """A confusion matrix, int (C, C), true classes in rows: the colour is the share of the row.

    With few classes the counts are written into the cells; a class without samples is a grey row.
    """
    matrix = np.asarray(matrix)
    totals = matrix.sum(1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.full(matrix.shape, np.nan), where=totals > 0)
    figure, axes = _heatmap(shares, classes, classes, "Blues", "share of the true class", matrix.astype(str).tolist())
    axes.set(xlabel="predicted class", ylabel="true class")
    _save(figure, path)


def domain_bars(by_domain: Mapping[str, Any], path: str | Path, metric: str = "accuracy") -> None:
    """Bars for each domain and for their mean, side by side for several methods.

    by_domain: {domain: value}, or {method: {domain: value}}. A value is a number, or one for each run: then
    the bar is their mean and the line one standard deviation (ddof 1). A domain that a method lacks has no
    bar, and such a method has no mean.
    """
    named = all(isinstance(value, Mapping) for value in by_domain.values())
    methods: dict[str, Mapping[str, Any]] = dict(by_domain) if named else {"": by_domain}
    domains = list(dict.fromkeys(domain for values in methods.values() for domain in values))
    room = 9 / (len(domains) + 1)  # inches for each domain and the mean
    bar = min(room / (len(methods) + 0.7), 0.32)
    group = max(bar * (len(methods) + 0.7), min(room, 1.1))
    figure = _figure(max(group * (len(domains) + 1.3) + 0.9 + named * 1.6, 3.5), 3.6)
    axes = figure.subplots()
    mean_at = len(domains) + 0.3
    for i, (method, values) in enumerate(methods.items()):
        runs = [(float(x), _runs(values[domain])) for x, domain in enumerate(domains) if domain in values]
        if len(runs) == len(domains) and len({len(run) for _, run in runs}) == 1:
            runs.append((mean_at, np.mean([run for _, run in runs], axis=0)))
        bars = axes.bar(
            [x + (i - (len(methods) - 1) / 2) * bar / group for x, _ in runs],
            [run.mean() for _, run in runs],
            0.92 * bar / group,
            yerr=[run.std(ddof=1) if len(run) > 1 else np.nan for _, run in runs],
            error_kw={"elinewidth": 1, "capsize": 2},
            color=PALETTE[i % len(PALETTE)],
            hatch="//" if i >= len(PALETTE) else None,
            edgecolor="white",
            linewidth=0,
            label=_short(method),
        )
        if bar >= 0.28:
            axes.bar_label(bars, [f"{100 * run.mean():.1f}" for _, run in runs], fontsize=7, padding=2)
    # From the right, so that the mean keeps its name where not every bar can have one.
    names, places = ["mean", *map(_short, reversed(domains))], [mean_at, *reversed(range(len(domains)))]
    _name_ticks(axes, "x", names, group, places)
    axes.margins(y=0.12)
    axes.set(ylim=(0, min(axes.get_ylim()[1], 1.08)), ylabel=_NAMES.get(metric, metric))
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1])  # no score is higher
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    if named:
        _legend(figure, axes)
    _save(figure, path)


def differences(rows: Sequence[tuple[str, float, float | None]], path: str | Path, metric: str = "accuracy") -> None:
    """Paired differences (label, mean, half the interval's width or None), as points with their intervals, around 0."""
    labels = [_short(label, 60) for label, _, _ in rows]
    figure = _figure(4.2 + _room(labels, 0.3), 0.3 * len(rows) + 0.9)
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=1)
    for y, (_, mean, half) in enumerate(rows):
        axes.errorbar(100 * mean, y, xerr=None if half is None else 100 * half, color=PALETTE[0], fmt="o", capsize=3)
    _name_ticks(axes, "y", labels, 0.3)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"difference in {_NAMES.get(metric, metric)}, points")
    axes.grid(axis="x", color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _save(figure, path)


def against_bytes(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: str | Path, metric: str = "accuracy"
) -> None:
    """What was sent and what it came to: for each label (bytes, scores) of its runs; mean, one deviation (ddof 1)."""
    figure = _figure(7.5, 4.0)
    axes = figure.subplots()
    for i, (label, values) in enumerate(series.items()):
        x, y = (_runs(value) for value in values)
        axes.errorbar(
            x.mean() / 1e6,
            y.mean(),
            yerr=y.std(ddof=1) if len(y) > 1 else None,
            color=PALETTE[i % len(PALETTE)],
            fmt=MARKERS[(i + i // len(PALETTE)) % len(MARKERS)],
            markersize=7,
            capsize=3,
            label=_short(label),
        )
    sent = np.concatenate([_runs(values[0]) for values in series.values()])
    if sent.max() > 10 * sent.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(0.12)
    axes.set(xlabel="megabytes sent, up and down, in a run", ylabel=_NAMES.get(metric, metric))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, axes)
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _save(figure: Figure, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for axes in figure.axes:
        axes.set_axisbelow(True)
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


def _series(rounds: Sequence[Round], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Round numbers and values, NaN where a line lacks the key."""
    values = [line[key] if line.get(key) is not None else np.nan for line in rounds]
    return np.array([line["round"] for line in rounds]), np.array(values, dtype=np.float64)


def _aligned(runs: Sequence[Sequence[Round]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds that every run has evaluated, and the values, float (runs, rounds)."""
    values = [{line["round"]: line[key] for line in run if line.get(key) is not None} for run in runs]
    shared = sorted(set.intersection(*map(set, values))) if values else []
    return np.array(shared), np.array([[run[r] for r in shared] for run in values], dtype=np.float64)


def _runs(value: Any) -> np.ndarray:
    return np.atleast_1d(np.asarray(value, dtype=np.float64))


def _line(i: int, points: int) -> dict[str, Any]:
    """The look of the i-th line: colour and stroke differ for 32 lines; markers where points are few."""
    stroke = STROKES[(i + i // len(PALETTE)) % len(STROKES)]
    marker = "o" if points <= 25 else None
    return {"color": PALETTE[i % len(PALETTE)], "linestyle": stroke, "marker": marker, "markersize": 4}


def _by_round(axes: Axes, key: str) -> None:
    axes.set(xlabel="round", ylabel=_NAMES.get(key, key))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if key != "loss":
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - 1, high + 1)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _colour_bar(figure: Figure, drawn: ScalarMappable, axes: Axes, label: str, **options: Any) -> None:
    thickness = 0.18  # inches, whatever the figure's size
    fraction, aspect = 0.05, figure.get_figheight() / thickness
    figure.colorbar(drawn, ax=axes, label=label, fraction=fraction, pad=0.02, aspect=aspect, **options)


def _short(name: object, limit: int = 28) -> str:
    text = str(name)
    return text if len(text) <= limit else f"{text[: limit - 9]}…{text[-8:]}"


def _cell(number: int) -> float:
    """Inches for each of so many rows or columns; from about 80 on not every one can be named."""
    return float(np.clip(6 / max(number, 1), 0.15, 0.45)) if number <= 80 else 12 / number


def _font(cell: float) -> float:
    """The size, in points, of the names at cells of so many inches."""
    return float(np.clip(72 * cell * 0.75, 5.5, 9))


def _room(names: Sequence[str], cell: float) -> float:
    """Inches that the longest name and the axis's title take."""
    return 0.4 + max(map(len, names), default=0) * 0.6 * _font(cell) / 72


def _name_ticks(
    axes: Axes, which: str, names: Sequence[str], cell: float, places: Sequence[float] | None = None
) -> None:
    """Names at the ticks (0, 1, ... or ``places``), as many as cells of so many inches leave room for."""
    size = _font(cell)
    step = int(np.ceil(1.15 * size / 72 / cell))
    labels = names[::step]
    upright = which == "x" and max(map(len, labels), default=0) * 0.62 * size / 72 > step * cell
    axis = axes.xaxis if which == "x" else axes.yaxis
    ticks = (range(len(names)) if places is None else places)[::step]
    axis.set_ticks(ticks, labels, fontsize=size, rotation=90 if upright else 0, parse_math=False)


def _heatmap(
    matrix: np.ndarray,
    rows: Sequence[str],
    cols: Sequence[str],
    cmap: str,
    label: str,
    texts: Sequence[Sequence[str]],
) -> tuple[Figure, Axes]:
    """A matrix as colours from 0 up, grey where NaN, with ``texts`` in the cells where they fit."""
    side = min(_cell(len(rows)), _cell(len(cols)))
    rows, cols = [_short(name) for name in rows], [_short(name) for name in cols]
    figure = _figure(
        max(side * len(cols), 1.5) + _room(rows, side) + 1.2,
        max(side * len(rows), 1.5) + _room(cols, side) + 0.2,
    )
    axes = figure.subplots()
    colours: Colormap = matplotlib.colormaps[cmap].with_extremes(bad=ABSENT)
    top = float(np.nanmax(matrix, initial=0)) or 1.0
    image = axes.imshow(matrix, cmap=colours, vmin=0, vmax=top, interpolation="nearest", aspect="auto")
    _name_ticks(axes, "x", cols, side)
    _name_ticks(axes, "y", rows, side)
    _colour_bar(figure, image, axes, label)
    if side >= 0.35:
        for r, c in np.argwhere(np.isfinite(matrix)):
            brightness = np.dot(colours(matrix[r, c] / top)[:3], (0.299, 0.587, 0.114))
            colour = "white" if brightness < 0.55 else "black"
            axes.text(c, r, texts[r][c], ha="center", va="center", color=colour, fontsize=7)
    return figure, axes
