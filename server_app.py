"""The ServerApp: reads the configuration, runs it over the grid, and leaves a run directory."""

import shutil
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from app.config import load
from app.node import state_folder
from app.results import default_run_dir
from app.server import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run of `flwr run`; an error makes Flower mark the run as failed."""
    config = load(str(context.run_config["overrides"]), experiment=str(context.run_config["experiment"]))
    run_dir = Path(config.run_dir) if config.run_dir else default_run_dir(config)
    try:
        summary = run(grid, config, run_dir)
    finally:
        log(INFO, "Run directory: %s", run_dir)
        shutil.rmtree(state_folder(config, context.run_id), ignore_errors=True)
    log(INFO, "%s: %.4f, best %s", summary["metric"], summary["final"], summary["best"])
