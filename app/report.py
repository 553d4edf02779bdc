"""report.html: one self-contained page a run, readable offline, on a phone and without colour."""

import base64
import html
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; background: white; }
.failed { border-left: .4rem solid; padding-left: .8rem; }
pre { overflow-x: auto; font-size: .85rem; }
"""
FIGURES = {
    "curves.png": "Scores and loss by round",
    "domains.png": "Accuracy by domain",
    "confusion.png": "Confusion of the final model",
    "label_distribution.png": "Samples of each class at each client",
    "similarity.png": "Similarity of the class shapes between two domains",
}


def write(run_dir: Path, summary: dict[str, Any]) -> Path:
    """Write ``report.html`` into the run directory from what lies there, and return its path.

    The page depends on the files alone, so that writing it twice gives the same file.
    """
    title = f"{summary['experiment']}: {summary['method']} with augmentation {summary['augmentation']}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if summary["status"] != "completed":
        error = html.escape(str(summary["error"]))
        parts.append(f'<p class="failed"><strong>This run {summary["status"]}.</strong> {error}</p>')
    parts.append("<h2>Result</h2>" + table(("", ""), result_rows(summary)))
    if summary["by_domain"]:
        rows = [(name, percent(value)) for name, value in summary["by_domain"].items()]
        parts.append("<h2>By domain</h2>" + table(("domain", "accuracy"), rows))
    for name, caption in FIGURES.items():
        path = run_dir / "figures" / name
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(
                f'<h2>{caption}</h2><figure><img alt="{caption}" src="data:image/png;base64,{data}"></figure>'
            )
    config = (run_dir / "config.yaml").read_text()
    parts.append(f"<h2>Configuration</h2><pre>{html.escape(config)}</pre>")
    parts.append(f"<h2>Versions</h2><pre>{html.escape((run_dir / 'versions.json').read_text())}</pre>")
    target = run_dir / "report.html"
    target.write_text(page(title, "".join(parts)))
    return target


def result_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary's figures in words."""
    metric = summary["metric"]
    rows = [
        (f"{metric}, final", percent(summary["final"])),
        (f"{metric} at the best validation round ({summary['best_round']})", percent(summary["best"])),
        ("rounds", str(summary["rounds"])),
        ("seed", str(summary["seed"])),
        ("parameters", str(summary["parameters"])),
        ("samples added by the augmentation", f"{summary['added_samples']:,}"),
        ("root mean square of the perturbation", f"{summary['perturbation_rms']:.4f}"),
        ("seconds", f"{summary['seconds']:.1f}"),
        ("megabytes up / down", f"{summary['bytes_up'] / 1e6:.2f} / {summary['bytes_down'] / 1e6:.2f}"),
        ("peak memory of the largest process", f"{summary['peak_memory_mb']:.0f} MB"),
    ]
    return rows


def percent(value: float | None) -> str:
    """0.8312 as '83.12 %'; a dash where there is no value."""
    return "-" if value is None else f"{100 * value:.2f} %"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """An HTML table."""
    line = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line}</tr></thead><tbody>{body}</tbody></table></div>'


def write_sweep(folder: Path) -> Path:
    """report.html of a sweep: a table of the runs below ``folder``, each linked to its own report."""
    head = ("run", "final", "best", "added samples", "seconds", "MB up", "MB down")
    lines = []
    for path in sorted(folder.glob("*/summary.json")):
        s = json.loads(path.read_text())
        cells = [percent(s["final"]), percent(s["best"]), f"{s['added_samples']:,}", f"{s['seconds']:.1f}"]
        cells += [f"{s['bytes_up'] / 1e6:.2f}", f"{s['bytes_down'] / 1e6:.2f}"]
        link = f'<a href="{html.escape(path.parent.name)}/report.html">{html.escape(path.parent.name)}</a>'
        lines.append(f"<tr><td>{link}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    headline = "".join(f"<th>{cell}</th>" for cell in head)
    grouped = over_seeds(
        [(path.parent.name.split(","), json.loads(path.read_text())) for path in sorted(folder.glob("*/summary.json"))]
    )
    seeds = "<h2>Over seeds: mean ± standard deviation (ddof 1)</h2>" + table(SEEDS_HEAD, grouped) if grouped else ""
    body = f'<div class="scroll"><table><thead><tr>{headline}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    target = folder / "report.html"
    target.write_text(page("Runs side by side", f"<h1>Runs side by side</h1>{seeds}{body}"))
    return target


SEEDS_HEAD = ("run", "seeds", "final", "mean over domains", "STD over domains", "macro F1")


def over_seeds(runs: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> list[tuple[str, ...]]:
    """Rows below SEEDS_HEAD: the runs that differ in their seed alone, together, in per cent.

    runs: (what sets the run apart, its overrides; its summary). Each cell is mean ± standard deviation (ddof 1) over
    the completed runs. Empty where nothing was repeated.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for words, summary in runs:
        if summary["status"] == "completed":
            label = " ".join(word for word in words if not word.startswith("seed=")) or "all runs"
            groups.setdefault(label, []).append(summary)
    if max(map(len, groups.values()), default=0) < 2:
        return []
    keys = ("final", "mean_over_domains", "std_over_domains", "f1_macro")
    return [
        (label, str(len(group)), *(spread([summary[key] for summary in group]) for key in keys))
        for label, group in groups.items()
    ]


def spread(values: Sequence[float]) -> str:
    """Shares as 'mean ± standard deviation' in per cent, ddof 1; one value as it is."""
    if len(values) < 2:
        return percent(values[0])
    return f"{100 * statistics.fmean(values):.2f} ± {100 * statistics.stdev(values):.2f} %"


def page(title: str, body: str) -> str:
    """A whole HTML page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )
