#!/usr/bin/env python3
"""FedAvg, GGEUR, ridge and LDA under every attack and rule: 2 of 10 clients hostile, or none (docs/robust.md).

Runs go on in this process and draw nothing; each finished one is a line of FOLDER/results.jsonl, and the same command
does only what is missing. It ends with the tables.
"""

import argparse
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing

# isort: split
import numpy as np  # noqa: E402

from app.common.errors import FedgeoError, describe  # noqa: E402
from app.launch.job import plan, run_in_process  # noqa: E402

Words = tuple[str, ...]
SEEDS = (101, 102, 103)
SHARED = ("engine=inprocess", "training.lr=1")
SPLITS = {"evenly split": ("federation.partition=iid",), "Dir(0.1)": ("federation.partition=dirichlet",)}
ATTACKS: dict[str, Words] = {
    "none": (),
    "label flip": ("attack=label_flip",),
    "flip, 1,000 x": ("attack=label_flip", "attack.counts=1000"),
    "sign flip": ("attack=sign_flip",),
    "scaled": ("attack=scaled",),
    "noise": ("attack=noise",),
    "ALIE": ("attack=alie",),
    "IPM": ("attack=ipm",),
    "poisoned": ("attack=poisoned_statistics",),
}
RULES: dict[str, Words] = {
    "mean": ("method=fedavg",),
    "mean, max_weight=3": ("method=fedavg", "federation.max_weight=3"),
    "fedmedian": ("method=fedmedian",),
    "fedtrimmedavg": ("method=fedtrimmedavg",),
    "krum": ("method=krum",),
    "multikrum": ("method=multikrum",),
    "bulyan (f = 1)": ("method=bulyan",),
    "centred_clipping": ("method=centred_clipping",),
    "geometric_median": ("method=geometric_median",),
}
MERGES: dict[str, Words] = {f"robust={how}": (f"federation.robust={how}",) for how in ("none", "clip", "median")}
BOTH = ("fedmedian", "multikrum", "centred_clipping", "geometric_median")  # rules for updates beside a robust merge
HEADS = ("none", "label flip", "flip, 1,000 x", "poisoned")  # attacks on what has no updates


@dataclass(frozen=True)
class Table:
    """A method under attacks, a column each, and rules, a row each."""

    title: str
    base: Words
    attacks: Sequence[str]
    rules: dict[str, Words]


TABLES = (
    Table("FedAvg", ("augmentation=none",), [name for name in ATTACKS if name != "poisoned"], RULES),
    Table(
        "GGEUR",
        ("augmentation=ggeur",),
        list(ATTACKS),
        {f"mean, {name}": words for name, words in MERGES.items()}
        | {f"{name}, robust=median": (*RULES[name], *MERGES["robust=median"]) for name in BOTH},
    ),
    Table("Ridge", ("method=ridge",), HEADS, MERGES),
    Table("LDA", ("method=lda",), HEADS, MERGES),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the results are kept")
    folder = parser.parse_args().folder
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("app").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    path.touch()
    found = {tuple(line["words"]): line["final"] for line in map(json.loads, path.read_text().splitlines())}
    todo = [words for words in dict.fromkeys(every()) if words not in found]
    for number, words in enumerate(todo, start=1):
        found[words] = accuracy(words, folder / "run")
        with path.open("a") as file:
            file.write(json.dumps({"words": words, "final": found[words]}) + "\n")
        print(f"{number}/{len(todo)} {' '.join(words)}: {found[words]}", file=sys.stderr, flush=True)
    for table in TABLES:
        for split in SPLITS:
            print("\n".join(markdown(table, split, found)))
    return 0


def every() -> Iterator[Words]:
    """The words of every run of the tables, all those of one seed before the next one's."""
    for seed in SEEDS:
        for table in TABLES:
            for split in SPLITS:
                for rule in table.rules:
                    for attack in table.attacks:
                        yield cell(table, split, rule, attack, seed)


def cell(table: Table, split: str, rule: str, attack: str, seed: int) -> Words:
    """The run of one cell with one seed."""
    return (*SHARED, *SPLITS[split], *table.base, *table.rules[rule], *ATTACKS[attack], f"seed={seed}")


def accuracy(words: Words, run_dir: Path) -> float | None:
    """The final test accuracy of one run; None where it failed, as where weights are no numbers any more."""
    shutil.rmtree(run_dir, ignore_errors=True)
    try:
        return float(run_in_process(replace(plan(words, run_dir=run_dir), figures=False), lambda row: None)["final"])
    except (FedgeoError, FloatingPointError) as error:
        print(describe(error), file=sys.stderr)
        return None


def markdown(table: Table, split: str, found: dict[Words, float | None]) -> list[str]:
    """The table as lines: accuracy in %, mean and standard deviation (divisor n - 1) over the seeds."""
    lines = ["", f"**{table.title}, {split}**", "", f"| | {' | '.join(table.attacks)} |"]
    lines.append("|---|" + "---:|" * len(table.attacks))
    for rule in table.rules:
        cells = []
        for attack in table.attacks:
            scores = [found[cell(table, split, rule, attack, seed)] for seed in SEEDS]
            known = [100 * score for score in scores if score is not None]
            failed = len(known) < len(scores)
            cells.append("failed" if failed else f"{np.mean(known):.1f} ± {np.std(known, ddof=1):.1f}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
