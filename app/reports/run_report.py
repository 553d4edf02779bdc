"""report.html of one run: what it came to, its figures, its configuration."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.files import write_atomic
from .html import folded, page, picture
from .joining import section
from .tables import SIMULATED, Table, as_html

FIGURES = {
    "curves.png": "Scores and loss by round",
    "domains.png": "Accuracy by domain",
    "confusion.png": "Confusion of the final model",
    "label_distribution.png": "Samples of each class at each client",
    "similarity.png": "Similarity of the class shapes between two domains",
}


def write(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Write ``report.html`` into the run directory from what lies there, and return its path.

    The page depends on the files alone, so that writing it twice gives the same file.
    """
    title = f"{summary['experiment']}: {summary['method']} with augmentation {summary['augmentation']}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if summary["status"] != "completed":
        error = html.escape(str(summary["error"]))
        parts.append(f'<p class="failed"><strong>This run {summary["status"]}.</strong> {error}</p>')
    if summary.get("simulated"):
        parts.append(f"<p><strong>{SIMULATED}</strong></p>")
    parts += [f"<p><strong>Warning.</strong> {html.escape(warning)}</p>" for warning in summary.get("warnings") or ()]
    parts.append(as_html(Table("Result", ("", ""), tuple(result_rows(summary)))))
    if summary["by_domain"]:
        rows = tuple((name, percent(value)) for name, value in summary["by_domain"].items())
        parts.append(as_html(Table("By domain", ("domain", "accuracy"), rows)))
    if (joining := run_dir / "joining.json").is_file():
        parts += section(json.loads(joining.read_text()), run_dir / "figures")
    parts += privacy_section(summary.get("privacy"))
    parts += [picture(run_dir / "figures" / name, caption) for name, caption in FIGURES.items()]
    for name, caption in (("config.yaml", "Configuration"), ("versions.json", "Versions")):
        parts.append(folded(caption, f"<pre>{html.escape((run_dir / name).read_text())}</pre>"))
    target = run_dir / "report.html"
    write_atomic(target, page(title, "".join(parts)).encode())
    return target


def privacy_section(privacy: Mapping[str, Any] | None) -> list[str]:
    """What the policies let clients report of their samples, and what was left out; nothing where it is not known."""
    if privacy is None:
        return []
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in privacy["left_out"])
    words = html.escape(" ".join(privacy["meaning"]))
    return [f"<p><strong>privacy={privacy['policy']}.</strong> {words}</p>", f"<ul>{lines}</ul>" if lines else ""]


def result_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The summary's figures in words; a dash for what a failed run did not come to."""
    metric = summary["metric"]
    best = f"{metric} at the best validation round" + (f" ({summary['best_round']})" if summary["best_round"] else "")
    return [
        (f"{metric}, {summary.get('final_of') or 'final'}", percent(summary["final"])),
        (f"{metric}, last round", percent(summary.get("last"))),
        (best, percent(summary["best"])),
        ("rounds", formatted(summary["rounds"])),
        ("seed", str(summary["seed"])),
        ("parameters", formatted(summary["parameters"])),
        ("samples added by the augmentation", formatted(summary["added_samples"])),
        ("root mean square of the perturbation", formatted(summary["perturbation_rms"], ".4f")),
        ("seconds", formatted(summary["seconds"], ".1f")),
        ("megabytes up", formatted(summary["bytes_up"], ".2f", 1e-6)),
        ("megabytes down", formatted(summary["bytes_down"], ".2f", 1e-6)),
        ("peak memory of the largest process, MB", formatted(summary["peak_memory_mb"], ".0f")),
    ]


def percent(value: float | None) -> str:
    """0.8312 as '83.12 %'; a dash where there is no value."""
    return "-" if value is None else f"{100 * value:.2f} %"


def formatted(value: float | None, form: str = ",", factor: float = 1) -> str:
    """A number in a format; a dash where there is none."""
    return "-" if value is None else format(value if factor == 1 else factor * value, form)
