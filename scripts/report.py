#!/usr/bin/env python3
"""What runs come to: mean and deviation over seeds, paired comparisons, the papers' tables, or a page with figures.

Any run directories, or folders of them (a sweep_dir, runs/), are put together. Every figure comes from their files
alone; a run that failed or broke off is listed and counts nowhere.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: F401 - first: it says what is missing
from app.common.errors import FedgeoError
from app.reports.overview import NAMES, Overview
from app.reports.tables import FORMATS
from app.runs.reader import find, is_run
from app.tools.command import deliver, say

EPILOG = """\
examples:
  scripts/report.py runs/my-sweep                                      all tables, in the terminal
  scripts/report.py runs/my-sweep --format latex --out tables.tex      the same for a paper
  scripts/report.py runs/my-sweep --format csv --out results.csv       a row an arm, with its run directories
  scripts/report.py runs --table papers --format markdown              only the papers' tables
  scripts/report.py runs/my-sweep --table pairs --against lda          differences to one method, paired by seed
  scripts/report.py runs/a runs/b --format html --out report.html      a self-contained page of two sweeps

In csv, shares are 0..1 (in the table papers: the papers' units) and means and deviations have columns of their own.
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 2 refused."""
    options = parse(arguments)
    try:
        content = render(options.folders, options.format, options.table, options.out, options.against)
        deliver(content, options.out, "report")
    except (FedgeoError, OSError) as error:
        say(f"error: {error}")
        return 2
    return 0


def render(folders: list[Path], form: str, table: str | None, out: Path | None, against: str | None = None) -> str:
    """The report of the runs below ``folders``. Paths in it start where they all lie; in a page, where it lies.

    FedgeoError where there are none.
    """
    runs = find(folders)
    if not runs:
        raise FedgeoError(f"{', '.join(map(str, folders))}: there is no run directory here")
    root = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    if form == "html" and out is not None:
        root = out.absolute().parent
    overview = Overview(root.parent if is_run(root) else root, runs, against)
    if form == "html":
        from app.reports import sweep_report  # draws: half a second that the others need not wait for

        return sweep_report.document(overview)
    if form == "csv":
        return FORMATS[form]([overview.for_programs(table or "results")])
    return FORMATS[form](overview.tables(table))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run directories, or folders of them")
    parser.add_argument("--format", choices=(*FORMATS, "html"), default="text")
    parser.add_argument("--table", choices=NAMES, help="only this one (default: all; in csv: results)")
    parser.add_argument("--against", metavar="VALUE", help="compare with the arms that have this method, or the like")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of to the terminal")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
