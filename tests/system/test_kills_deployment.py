"""kill -9 of a deployment's server, and of a rehearsal's command. A site that is killed is in test_deployment.py."""

from pathlib import Path

import pytest

from app.launch.deployment import Deployment, LocalSite
from app.launch.job import plan
from app.runs import reader
from tests.killing import ENDED, equal, resume, run_killed
from tests.processes import Command, Killer, kill, marked, wait_for
from tests.sites import digit_sites, run_over_sites

pytestmark = pytest.mark.slow


def test_a_deployment_whose_server_is_killed_goes_on_over_the_same_sites(tmp_path: Path) -> None:
    """The process of the server dies while sites train: SuperLink and sites stay, and the run goes on with what the
    sites kept (SCAFFOLD's controls), to the end of an uninterrupted one."""
    words = ("experiment=quickstart", "method=scaffold", "augmentation=none", "training.epochs=1")
    words += ("federation.rounds=2", "engine=deployment")
    folder, sites = tmp_path / "run", digit_sites(tmp_path, 2)
    with Deployment(sites) as deployment:
        error = run_killed(plan(words, run_dir=folder), Killer(deployment, "flwr-serverapp", 1))
        assert "the run ended as finished:failed" in error
        assert deployment.connected() == 2
        resume(folder, deployment)
    assert marked(deployment.mark) == []
    here = [LocalSite(site.name, site.data, tmp_path / "here" / site.name) for site in sites]
    run_over_sites(tmp_path / "whole", here, *words)
    equal(folder, tmp_path / "whole")


def test_a_rehearsal_whose_command_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    """scripts/deploy_local.py dies while its site works: SuperLink, SuperNode and what they started end too."""
    folder = tmp_path / "run"
    process = Command("deploy_local.py", tmp_path, "--nodes", "1", "experiment=quickstart", f"run_dir={folder}")
    log = folder / "log.txt"
    wait_for("the site", lambda: log.exists() and "sites: 0 site-1" in log.read_text())
    started = kill(process)
    assert {"flower-superlink", "flower-supernode", "flwr-serverapp"} <= started.programs
    wait_for("the end of what it started", lambda: not started.running())
    assert not any(home.exists() for home in started.homes)
    assert reader.read(folder).status in ENDED
