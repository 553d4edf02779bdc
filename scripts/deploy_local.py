#!/usr/bin/env python3
"""Rehearse a deployment: a SuperLink with TLS and node keys and one SuperNode a site, all on this machine.

Every site has its own data folder, as it would have far away. The run's data set is dealt to them, or --data names the
folders. All that was started is ended, whatever happens.
"""

import argparse
import contextlib
import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scripts.environment  # noqa: E402, F401 - first: it says what is missing
from app.common.errors import FedgeoError  # noqa: E402
from app.config.compose import load  # noqa: E402
from app.tools.command import exit_code, say  # noqa: E402

if TYPE_CHECKING:
    from app.launch.deployment import LocalSite
    from app.launch.job import Job

EPILOG = """\
examples:
  scripts/deploy_local.py --nodes 3 experiment=quickstart federation.rounds=2 run_dir=runs/rehearsal
  scripts/deploy_local.py --data /data/berlin /data/paris experiment=image_folder encoder=pixels
  scripts/deploy_local.py --data /data/eeg/s1 /data/eeg/s2 /data/eeg/s3 experiment=eeg_folder \\
      'data.events={left_hand: T1, right_hand: T2}' federation.rounds=5
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 completed, 1 the run failed, 2 refused before anything started."""
    options = parse(arguments)
    return exit_code(lambda: partial(rehearse, *prepare(options)), "everything that was started has been ended")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; everything that is no option is a hydra override."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides, as in conf/")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many sites the data set is dealt to (3)")
    parser.add_argument("--data", nargs="+", type=Path, metavar="SITE", help="the sites' own data, instead")
    options = parser.parse_intermixed_args(arguments)
    if options.data:  # overrides that follow --data are taken for folders
        options.overrides += [str(path) for path in options.data if "=" in str(path) and not path.exists()]
        options.data = [path for path in options.data if str(path) not in options.overrides]
    return options


def prepare(options: argparse.Namespace) -> "tuple[Job, list[LocalSite]]":
    """The job, checked, and the sites with their data. Raises FedgeoError for what cannot be."""
    number = len(options.data) if options.data else options.nodes
    if number < 1:
        raise FedgeoError(f"--nodes {number}: at least one site is needed")
    words = [word for word in options.overrides if not word.startswith("engine=")]
    if number < 2 and not any(word.startswith("federation.min_nodes=") for word in words):
        words.append("federation.min_nodes=1")
    if any(word.startswith("resume=") for word in words):
        raise FedgeoError("resume: a rehearsal is begun anew; a run over sites goes on with scripts/run.py --superlink")
    load((*words, "engine=deployment"))
    from app.launch.deployment import POLICY, LocalSite  # after what may be wrong: it takes seconds
    from app.launch.job import plan
    from app.launch.rehearsal import data_path, write_shares
    from app.runs.run_directory import check_new
    from app.tools.site_check import check_site

    job = plan([*words, "engine=deployment"])
    home = job.run_dir.with_name(f"{job.run_dir.name}-sites")
    check_new(home)
    folders = [home / f"site-{index + 1}" for index in range(number)]
    if options.data:
        for path in options.data:
            if not path.exists():
                raise FedgeoError(f"--data {path}: there is no such file or folder")
            with contextlib.redirect_stdout(io.StringIO()):  # readers of recordings print what they think of names
                faults = check_site(path, words, POLICY).faults  # a site tells its server only that there is one
            if faults:
                raise FedgeoError(f"--data {path}: {faults[0]}")
        data = [path.expanduser().absolute() for path in options.data]
    else:
        shares = [folder / "data" for folder in folders]
        write_shares(words, shares)
        data = [data_path(share) for share in shares]
    seed = job.config.seed
    sites = [LocalSite(folder.name, path, folder, split_seed=seed) for folder, path in zip(folders, data, strict=True)]
    return job, sites


def rehearse(job: "Job", sites: "list[LocalSite]") -> int:
    """Start all, run the job, end all; then say what is where and how it is done for real."""
    from app.launch.deployment import Deployment, commands_for_real_machines
    from app.launch.sweep import run_here
    from app.tools.terminal import Progress, show_summaries

    with Progress() as progress:
        progress.note(f"starting a SuperLink with TLS and {len(sites)} SuperNodes with keys")
        with Deployment(sites) as deployment:
            outcome = run_here(job, deployment, progress)
    if outcome.summary is not None:
        show_summaries([(job.arm, outcome.summary)])
    say(f"run directory: {job.run_dir}")
    for site in sites:
        say(f"{site.name}: {site.output}")
    say(commands_for_real_machines(job.config.experiment, job.overrides))
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
