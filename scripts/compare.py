#!/usr/bin/env python3
"""Compare methods and augmentations: every arm tuned on the validation of other seeds, run over several, one table.

For every arm the same number of settings is tried: learning rates, and values of the method's own coefficients that its
file in conf/method declares. Runs in this machine's processes, without Flower's simulation. What is finished is kept in
the folder of results and not repeated: the same command resumes, a longer one adds to it.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.common.errors import FedgeoError  # noqa: E402
from app.common.files import write_atomic  # noqa: E402
from app.tools.command import end_as_by_ctrl_c, positive, say  # noqa: E402
from app.tools.tuning import POINTS, RATES  # noqa: E402

METHODS = ("fedavg", "fedprox", "fedavgm", "fedopt", "scaffold", "moon", "feddyn", "fedproto", "fedntd")
EPILOG = """\
examples:
  scripts/compare.py quickstart                                  every base method on handwritten digits
  scripts/compare.py pacs=pacs.npz cifar10=cifar10.npz --jobs 8  presets over embeddings made beforehand
  scripts/compare.py quickstart --methods fedavg --variations none "none steps=equal" ggeur --seeds 101 102
  scripts/compare.py quickstart --arms "fedavg repeat" "fedavg ggeur model.init=zeros,lda,ridge" "lda none"
  scripts/compare.py "pacs=pacs.npz federation.partition=domain_dirichlet federation.beta=0.1"
  scripts/compare.py quickstart --set federation.rounds=10 training.epochs=1
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 1 an arm failed or was refused, 130 interrupted."""
    options = parse(arguments)
    end_as_by_ctrl_c(signal.SIGTERM)
    folder = options.folder.absolute()
    words = options.arms or [f"{method} {variation}" for method in options.methods for variation in options.variations]
    try:
        data = dict(source(each) for each in options.data)
        from app.tools.compare import Grid, arms, compare  # after what may be wrong: it takes seconds
        from app.tools.compare_table import as_csv, markdown, show

        chosen = arms(data, words, options.set)
        low, high = sorted(options.rates)
        grid = Grid((low, high), options.settings)
        rows = compare(folder, chosen, grid, options.seeds, options.tuning_seeds, options.jobs, say)
        for name, text in (("table.md", markdown(rows)), ("table.csv", as_csv(rows))):
            write_atomic(folder / name, text.encode())
        show(rows)
        say(f"table: {folder / 'table.md'}, table.csv")
    except (FedgeoError, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted: the same command resumes")
        return 130
    return 0


def source(words: str) -> tuple[str, tuple[str, ...]]:
    """'pacs' is a preset, 'pacs=FILE' the preset over the embeddings in an npz file; overrides may follow.

    FedgeoError where there is no such file, or no preset to be read.
    """
    try:
        first, *more = shlex.split(words)
    except ValueError:  # nothing, or an open quotation
        raise FedgeoError(f"data {words!r}: give PRESET or PRESET=FILE, then overrides, quotations closed") from None
    preset, _, path = first.partition("=")
    if path and not Path(path).expanduser().is_file():
        raise FedgeoError(f"{first}: no such file: give an npz file of embeddings, or {preset} alone for the data set")
    where = ("data=features", f"data.path='{Path(path).expanduser().absolute()}'") if path else ()
    return " ".join((preset, *more)), (f"experiment={preset}", *where, *more)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        metavar="PRESET[=FILE]",
        help="presets; FILE: an npz file of embeddings instead of the data; overrides may follow, in one word",
    )
    add("--arms", nargs="+", help="'METHOD AUGMENTATION [KEY=VALUE ...]' each, instead of methods x variations")
    add("--methods", nargs="+", default=METHODS, help="files of conf/method (default: the nine base methods)")
    add("--variations", nargs="+", default=("none", "repeat", "ggeur"), help="augmentations, overrides after each")
    add(
        "--rates",
        nargs=2,
        type=float,
        default=RATES,
        metavar=("LOW", "HIGH"),
        help="between which rates are tried",
    )
    add("--settings", type=positive, default=POINTS, help="how many are tried for every arm (default: 12)")
    add("--seeds", nargs="+", type=int, default=(101, 102, 103, 104, 105), help="seeds of the table")
    add(
        "--tuning-seeds", nargs="+", type=int, default=(1, 2), help="other seeds, whose validation chooses the settings"
    )
    add("--set", nargs="+", default=(), metavar="KEY=VALUE", help="overrides for every run")
    add("--folder", type=Path, default=Path("runs/comparison"), help="where runs, table.md and table.csv go")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="processes (default: one a core)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
