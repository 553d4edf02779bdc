"""Run directories as runs leave them, with figures of our choosing and nothing trained."""

from collections.abc import Sequence
from pathlib import Path

from app.config.compose import load
from app.reports import figures, run_report
from app.runs.run_directory import RunDirectory


def make_run(
    folder: Path,
    *overrides: str,
    scores: Sequence[float] = (0.5, 0.6),
    domains: Sequence[str] = (),
    error: str | None = None,
) -> Path:
    """A run whose test accuracy goes through ``scores``, in each domain a little less than in the one before."""
    results = RunDirectory(folder, load(tuple(overrides)))
    names = domains or ("all",)
    for number, score in enumerate(scores, 1):
        results.append(
            {
                "round": number,
                "accuracy": score,
                "f1_macro": score - 0.01,
                "loss": 1 - score,
                "accuracy_by_domain": {name: score - 0.02 * place for place, name in enumerate(names)},
                "val_accuracy": score - 0.05,
                "train_loss": 1.1 - score,
                "seconds": 0.5 * number,
                "bytes_up": 1000,
                "bytes_down": 2000,
            }
        )
    facts = {"parameters": 650, "bytes_up": 1000 * len(scores), "bytes_down": 2000 * len(scores), "peak_memory_mb": 900}
    if scores:
        figures.curves(results.rows, folder / "figures" / "curves.png")
        results.write_json("confusion.json", {"round": 1, "classes": ["a", "b"], "counts": [[3, 1], [0, 4]]})
    run_report.write(folder, results.finish("failed" if error else "completed", error, facts))
    results.close()
    return folder
