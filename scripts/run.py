#!/usr/bin/env python3
"""Run an experiment: the same as `flwr run`, with hydra overrides, live progress and an honest exit code."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.config import CONF  # noqa: E402
from app.engines.flower import SuperLink  # noqa: E402
from app.engines.launch import Job, execute, expand, plan  # noqa: E402
from app.errors import FedgeoError  # noqa: E402
from app.report import write_sweep  # noqa: E402
from app.terminal import Progress, say, show_summaries  # noqa: E402

EPILOG = """\
examples:
  scripts/run.py                                      the quickstart: GGEUR on handwritten digits
  scripts/run.py engine=inprocess augmentation=none   in this process, without Flower's simulation
  scripts/run.py federation.rounds=50 training.lr=0.05 seed=2 run_dir=runs/mine
  scripts/run.py -m augmentation=none,repeat,ggeur    one run for each, one after the other, and a table

Keys and their meaning are in conf/; `--config` prints what a run would use. Group choices:
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 completed, 1 a run failed, 2 refused before anything started."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        if options.config:
            from app.config import dump, load

            print(dump(load(tuple(options.overrides))), end="")
            return 0
        jobs = plan_all(options.overrides) if options.multirun else [plan(options.overrides)]
    except FedgeoError as error:
        say(f"error: {error}")
        return 2
    try:
        return run_all(jobs, options.multirun)
    except FedgeoError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted: what was finished is kept, everything that was started has been ended")
        return 130


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
    parser.add_argument("--config", action="store_true", help="print the resolved configuration and stop")
    return parser.parse_intermixed_args(arguments)


def plan_all(overrides: list[str]) -> list[Job]:
    """The jobs of a sweep, each in a folder of its own under sweep_dir."""
    given = [o.split("=", 1)[1] for o in overrides if o.startswith("sweep_dir=")]
    folder = Path(given[-1] if given else f"runs/{time.strftime('%Y%m%d-%H%M%S')}-sweep").absolute()
    if any(o.startswith("run_dir=") for o in overrides):
        raise FedgeoError("run_dir: a sweep has several; give sweep_dir")
    return [
        plan(chosen, label or "run", folder / (label or "run").replace(" ", ",").replace("/", "_"))
        for chosen, label in expand(overrides)
    ]


def run_all(jobs: list[Job], sweep: bool) -> int:
    """Run the jobs one after the other over one SuperLink; a failed one does not stop the others."""
    summaries, failed = [], 0
    flower = any(job.config.engine == "flower" for job in jobs)
    with Progress() as progress:
        superlink = None
        try:
            if flower:
                progress.note("starting Flower's SuperLink")
                superlink = SuperLink().__enter__()
            for job in jobs:
                progress.begin(job.label or job.config.experiment, job.config.federation.rounds, job.config.metric.name)
                try:
                    summary = execute(job, superlink if job.config.engine == "flower" else None, progress.round)
                except Exception as error:
                    failed += 1
                    progress.end(f"failed: {error}")
                else:
                    summaries.append((job, summary))
                    progress.end()
        finally:
            if superlink is not None:
                superlink.stop()
    if summaries:
        show_summaries([(job.label or job.config.augmentation.kind, summary) for job, summary in summaries])
    for job in jobs:
        say(f"run directory: {job.run_dir}")
    if sweep and summaries:
        say(f"report: {write_sweep(jobs[0].run_dir.parent)}")
    elif summaries:
        say(f"report: {jobs[0].run_dir / 'report.html'}")
    return 1 if failed else 0


def interrupt(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that everything that was started is ended too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
