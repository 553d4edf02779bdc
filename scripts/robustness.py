#!/usr/bin/env python3
"""FedAvg, GGEUR, ridge and LDA under every attack and rule: 2 of 10 clients hostile, or none (docs/robust.md).

Every rule, on every split, has the learning rate with the best mean validation accuracy where nobody is hostile, on
seeds of its own. Runs go on in this process and draw nothing; each finished one is a line of FOLDER/results.jsonl, and
the same command does only what is missing. It ends with the tables.
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
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing

# isort: split
import numpy as np  # noqa: E402

from app.common.errors import FedgeoError, describe  # noqa: E402
from app.launch.job import plan, run_in_process  # noqa: E402

Words = tuple[str, ...]
Found = dict[Words, dict[str, Any]]  # of each run its scores
SEEDS, TUNED_ON = (101, 102, 103), (1, 2)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
SHARED = ("engine=inprocess",)
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
    trains: bool = True


TABLES = (
    Table("FedAvg", ("augmentation=none",), [name for name in ATTACKS if name != "poisoned"], RULES),
    Table(
        "GGEUR",
        ("augmentation=ggeur",),
        list(ATTACKS),
        {f"mean, {name}": words for name, words in MERGES.items()}
        | {f"{name}, robust=median": (*RULES[name], *MERGES["robust=median"]) for name in BOTH},
    ),
    Table("Ridge", ("method=ridge",), HEADS, MERGES, trains=False),
    Table("LDA", ("method=lda",), HEADS, MERGES, trains=False),
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
    found = {tuple(line["words"]): line for line in map(json.loads, path.read_text().splitlines())}
    for runs in (tuning(), every(found)):  # the second one reads what the first one has found
        todo = [words for words in dict.fromkeys(runs) if words not in found]
        for number, words in enumerate(todo, start=1):
            found[words] = {"words": words, **scores(words, folder / "run")}
            with path.open("a") as file:
                file.write(json.dumps(found[words]) + "\n")
            print(f"{number}/{len(todo)} {' '.join(words)}: {found[words]['final']}", file=sys.stderr, flush=True)
    for table in TABLES:
        for split in SPLITS:
            print("\n".join(markdown(table, split, found)))
    return 0


def tuning() -> Iterator[Words]:
    """The runs that the rates are chosen by."""
    for table in TABLES:
        for split in SPLITS if table.trains else ():
            for rule in table.rules:
                for rate in RATES:
                    for seed in TUNED_ON:
                        yield cell(table, split, rule, "none", seed, rate)


def every(found: Found) -> Iterator[Words]:
    """The runs of the tables, all those of one seed before the next one's."""
    for seed in SEEDS:
        for table in TABLES:
            for split in SPLITS:
                for rule in table.rules:
                    for attack in table.attacks:
                        yield cell(table, split, rule, attack, seed, rate(table, split, rule, found))


def rate(table: Table, split: str, rule: str, found: Found) -> float | None:
    """The rate of a rule on a split, None where nothing is trained."""
    if not table.trains:
        return None

    def validated(rate: float) -> float:
        tried = [found[cell(table, split, rule, "none", seed, rate)]["validation"] for seed in TUNED_ON]
        return float("-inf") if None in tried else float(np.mean(tried))

    return max(RATES, key=validated)


def cell(table: Table, split: str, rule: str, attack: str, seed: int, rate: float | None) -> Words:
    """One run."""
    rated = () if rate is None else (f"training.lr={rate:g}",)
    return (*SHARED, *rated, *SPLITS[split], *table.base, *table.rules[rule], *ATTACKS[attack], f"seed={seed}")


def scores(words: Words, run_dir: Path) -> dict[str, float | None]:
    """The final test accuracy of one run and its last round's on validation samples; None where it failed.

    As where weights are no numbers any more.
    """
    shutil.rmtree(run_dir, ignore_errors=True)
    try:
        summary = run_in_process(replace(plan(words, run_dir=run_dir), figures=False), lambda row: None)
    except (FedgeoError, FloatingPointError) as error:
        print(describe(error), file=sys.stderr)
        return {"final": None, "validation": None}
    last = json.loads((run_dir / "rounds.jsonl").read_text().splitlines()[-1])
    return {"final": float(summary["final"]), "validation": last.get("val_accuracy")}


def markdown(table: Table, split: str, found: Found) -> list[str]:
    """The table as lines: accuracy in %, mean and standard deviation (divisor n - 1) over the seeds."""
    lines = ["", f"**{table.title}, {split}**", "", f"| | {' | '.join(table.attacks)} |"]
    lines.append("|---|" + "---:|" * len(table.attacks))
    for rule in table.rules:
        cells = []
        for attack in table.attacks:
            chosen = rate(table, split, rule, found)
            finals = [found[cell(table, split, rule, attack, seed, chosen)]["final"] for seed in SEEDS]
            known = [100 * score for score in finals if score is not None]
            failed = len(known) < len(finals)
            cells.append("failed" if failed else f"{np.mean(known):.1f} ± {np.std(known, ddof=1):.1f}")
        rated = "" if chosen is None else f", lr {chosen:g}{'*' * (chosen in (RATES[0], RATES[-1]))}"
        lines.append(f"| {rule}{rated} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
