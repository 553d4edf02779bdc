"""The ServerApp: reads the configuration, runs it over the grid, and leaves a run directory."""

from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from app.client.node import state_folder
from app.config.compose import load
from app.grids.limits import Limits
from app.grids.retrying import RetryingGrid
from app.messages.flower_private import log
from app.runs.run_directory import default_run_dir
from app.server.run import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run of `flwr run`; an error makes Flower mark the run as failed."""
    config = load(str(context.run_config["overrides"]), experiment=str(context.run_config["experiment"]))
    where = config.resume or config.run_dir
    run_dir = Path(where) if where else default_run_dir(config)
    overrides, state = str(context.run_config["overrides"]), state_folder(config, context.run_id)
    if config.engine == "deployment":
        grid = RetryingGrid(grid, Limits.of(config.federation))
    try:
        summary = run(grid, config, run_dir, overrides=overrides, state=state)
    finally:
        log(INFO, "Run directory: %s", run_dir)
    log(INFO, "%s: %.4f, best %s", summary["metric"], summary["final"], summary["best"])
