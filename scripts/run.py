#!/usr/bin/env python3
"""Run an experiment: the same as `flwr run`, with hydra overrides, live progress and an honest exit code."""

# What trains and draws is imported where it is first needed: it takes seconds, which help and a wrong word need not.

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.common.code import CONF  # noqa: E402
from app.common.errors import FedgeoError  # noqa: E402
from app.config.combinations import expand  # noqa: E402
from app.config.compose import dump, load  # noqa: E402
from app.tools.command import deliver, exit_code, positive, say  # noqa: E402

EPILOG = """\
examples:
  scripts/run.py                                      the quickstart: GGEUR on handwritten digits
  scripts/run.py engine=inprocess augmentation=none   in this process, without Flower's simulation
  scripts/run.py federation.rounds=50 training.lr=0.05 seed=2 run_dir=runs/mine
  scripts/run.py -m augmentation=none,repeat,ggeur    one run for each, and a table
  scripts/run.py -m engine=inprocess method=fedavg,scaffold 'seed=range(1,6)' sweep_dir=runs/mine
                                                      ten runs, as many at once as there are cores; the same command
                                                      again does only those that are missing

Keys and their meaning are in conf/; `--config` prints what a run would use. Group choices:
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 completed, 1 a run failed, 2 refused before anything started."""
    options = parse(arguments)
    return exit_code(lambda: prepare(options), "what was finished is saved, everything that was started has been ended")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; everything that is no option is a hydra override."""
    groups = "\n".join(
        f"  {folder.name + '=':<14} " + " | ".join(sorted(p.stem for p in folder.glob("[!_]*.yaml")))
        for folder in sorted(CONF.iterdir())
        if folder.is_dir()
    )
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG + groups, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides, as in conf/")
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of comma-separated values")
    parser.add_argument(
        *("--jobs", "-j"),
        type=positive,
        help="runs at once, with engine=inprocess (default: one a core)",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...'",
        help="with -m, further runs: these overrides, and of the others those with one value",
    )
    parser.add_argument("--superlink", metavar="NAME", help="with engine=deployment: its name in Flower's settings")
    parser.add_argument("--config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--cfg", choices=("job",), help="as --config, in hydra's word")
    return parser.parse_intermixed_args(arguments)


def prepare(options: argparse.Namespace) -> Callable[[], int]:
    """What begins, once everything is checked. Raises FedgeoError for what cannot be."""
    if options.config or options.cfg:
        return configuration(options.overrides)
    if options.multirun:
        return many(options.overrides, options.also, options.jobs)
    return one(options.overrides, options.superlink)


def configuration(overrides: list[str]) -> Callable[[], int]:
    """What prints the configuration that a run would use."""
    resolved = dump(load(tuple(overrides)))

    def begin() -> int:
        deliver(resolved, None, "configuration")
        return 0

    return begin


def one(overrides: list[str], connection: str | None) -> Callable[[], int]:
    """What begins one run, in this process or over a SuperLink of its own, once everything is checked.

    connection: the SuperLink of a deployment, by its name in the Flower configuration.
    """
    config = load(tuple(overrides))
    soon(f"{config.experiment}: method {config.method.name}, seed {config.seed}: checking")
    from app.launch.deployment import Connection
    from app.launch.job import plan
    from app.launch.sweep import run_here, run_on_superlink
    from app.tools.terminal import Progress, show_summaries

    job = plan(overrides)
    if job.config.engine == "deployment" and connection is None:
        raise FedgeoError(
            "engine=deployment runs on a SuperLink and sites of yours: name it with --superlink, or rehearse with "
            "scripts/deploy_local.py"
        )

    def begin() -> int:
        with Progress() as progress:
            if job.config.engine == "flower":
                (outcome,) = run_on_superlink([job], progress)
            elif job.config.engine == "deployment" and connection is not None:
                with Connection(connection) as superlink:
                    outcome = run_here(job, superlink, progress)
            else:
                outcome = run_here(job, None, progress)
        if outcome.summary:
            show_summaries([(job.arm, outcome.summary)])
        say(f"run directory: {job.run_dir}")
        if outcome.summary:
            say(f"report: {job.run_dir / 'report.html'}")
        return 1 if outcome.error else 0

    return begin


def soon(text: str) -> None:
    """Say what is being done, to a person who waits; a file or a pipe is for what comes of it."""
    if sys.stdout.isatty():
        say(text)


def many(overrides: list[str], also: list[str], workers: int | None) -> Callable[[], int]:
    """What begins a sweep, once everything is checked: the runs that its folder lacks, then all of it together."""
    combinations = expand(overrides, also)
    load(combinations[0][0])
    soon(f"{len(combinations)} runs: checking")
    from app.launch.sweep import cores, plan_sweep, run_sweep
    from app.reports import sweep_report
    from app.reports.overview import Overview
    from app.runs.reader import OUTDATED, find
    from app.tools.terminal import Progress, show_summaries, show_tables

    sweep = plan_sweep(overrides, also)

    def begin() -> int:
        if sweep.finished:
            say(f"{len(sweep.finished)} runs are finished already, {len(sweep.jobs)} are left")
        if sweep.outdated:
            say(f"{sweep.outdated} runs of another version of the code are done again; theirs are in {OUTDATED}/")
        with Progress(len(sweep.jobs)) as progress:
            outcomes = run_sweep(sweep, workers or cores(), progress)
        overview = Overview(sweep.folder, find([sweep.folder]))
        if len(overview.arms) < sum(run.completed for run in overview.runs):
            show_tables([overview.results(), *([overview.differences()] if overview.pairs else [])])
        elif overview.arms:
            show_summaries([(arm.label, arm.runs[0].summary) for arm in overview.arms])
        say(f"runs: {sweep.folder}")
        say(f"report: {sweep_report.write(sweep.folder)}")
        if failed := sum(outcome.error is not None for outcome in outcomes):
            say(f"{failed} of {len(outcomes)} runs failed: the same command tries them again, and those alone")
        return 1 if failed else 0

    return begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
