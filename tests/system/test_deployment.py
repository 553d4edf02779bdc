"""Real processes on loopback: a SuperLink with TLS, SuperNodes with keys, each site with data of its own."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from app.common.errors import FedgeoError
from app.launch.certificates import node_key
from app.launch.deployment import Deployment, LocalSite
from app.launch.job import execute, plan
from app.launch.superlink import free_port
from tests.processes import WAIT, Command, listening, marked, wait_for
from tests.running import rounds
from tests.sites import EEG, audit, digit_sites, eeg_sites, own_output, run_over_sites

pytestmark = pytest.mark.slow


def rehearse(folder: Path, *arguments: str) -> Command:
    """scripts/deploy_local.py with its run directory, and all else, in ``folder``."""
    return Command("deploy_local.py", folder, *arguments, f"run_dir={folder / 'run'}")


GGEUR, PROJAVG = ("experiment=quickstart", "federation.rounds=1"), (*EEG, "federation.rounds=1")


@pytest.fixture(scope="module")
def rehearsals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str, Command]]:
    """Both families side by side, as most of the time is waiting: name -> folder, output, the command that ended."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("ggeur", "projavg")}
    recordings = [str(site.data) for site in eeg_sites(folders["projavg"] / "given", 2)]
    started = {
        "ggeur": rehearse(folders["ggeur"], "--nodes", "3", *GGEUR),
        "projavg": rehearse(folders["projavg"], "--data", *recordings, *PROJAVG),
    }
    return {name: (folders[name], process.communicate()[0], process) for name, process in started.items()}


def assert_equal_to_in_process(run_dir: Path, sites: list[LocalSite], folder: Path, *overrides: str) -> None:
    """The same run over the same data in this process gives the same numbers to 1e-6, and the same messages."""
    here = [LocalSite(site.name, site.data, folder / site.name) for site in sites]
    run_over_sites(folder / "run", here, *overrides)
    for line, other in zip(rounds(run_dir), rounds(folder / "run"), strict=True):
        assert line.pop("accuracy_by_domain") == pytest.approx(other.pop("accuracy_by_domain"), rel=0, abs=1e-6)
        assert line == pytest.approx(other, rel=0, abs=1e-6)
    models = [load_file(path / "model-final.safetensors") for path in (run_dir, folder / "run")]
    assert models[0].keys() == models[1].keys()
    for name, value in models[0].items():
        np.testing.assert_allclose(value, models[1][name], rtol=0, atol=1e-6)
    for site, other in zip(sites, here, strict=True):
        said, same = ([(x["message"], x["bytes"], x.get("classes")) for x in audit(each)] for each in (site, other))
        assert said == same
        assert (own_output(site) / "model-final.safetensors").read_bytes() == (
            run_dir / "model-final.safetensors"
        ).read_bytes()


@pytest.mark.parametrize(("name", "words"), [("ggeur", GGEUR), ("projavg", PROJAVG)])
def test_sites_give_what_one_process_gives(
    rehearsals: dict[str, tuple[Path, str, Command]], tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    folder, said, command = rehearsals[name]
    assert command.returncode == 0, said
    assert command.left() == []
    assert "flower-supernode --root-certificates ca.crt" in said
    homes = [folder / "run-sites" / f"site-{k}" for k in ((1, 2, 3) if name == "ggeur" else (1, 2))]
    data = [(home if name == "ggeur" else folder / "given" / home.name) / "data" for home in homes]
    sites = [LocalSite(home.name, path, home) for home, path in zip(homes, data, strict=True)]
    assert_equal_to_in_process(folder / "run", sites, tmp_path, *words)


def test_strangers_are_refused_and_a_killed_site_does_not_stop_the_others(tmp_path: Path) -> None:
    """Two thirds are enough: the run that loses a site in mid-round ends; one that needs all three fails in words."""
    short = ("experiment=quickstart", "augmentation=none", "federation.rounds=1", "engine=deployment")
    with Deployment(digit_sites(tmp_path)) as deployment:
        job = plan([*short, "federation.max_failures=0.34", f"run_dir={tmp_path / 'run'}"])
        strangers, doors = [], {}

        def heard(line: str) -> None:
            if "is held by" in line and not strangers:  # all were heard, and are sent the first round's weights
                doors.update(listening(deployment.mark))
                deployment.nodes["site-2"].kill()
                strangers.append(stranger(deployment, tmp_path / "stranger"))
                strangers.append(plaintext(deployment, tmp_path))

        summary = execute(job, deployment, lambda row: None, heard)
        assert summary["status"] == "completed"
        assert doors.keys() == {"127.0.0.1"}, doors
        assert [(line["clients"], line["failures"]) for line in rounds(tmp_path / "run")] == [(2, 1)]
        assert (own_output(deployment.sites[0]) / "model-final.safetensors").exists()
        assert not (tmp_path / "site-2" / "output" / "model-final.safetensors").exists()

        for process, log in strangers:
            wait_for("the stranger's refusal", lambda process=process: process.poll() is not None)
            assert process.returncode != 0, log.read_text()
        assert deployment.connected() == 2

        needs_all = plan([*short, "federation.min_nodes=3", "federation.deadline=10", f"run_dir={tmp_path / 'all'}"])
        with pytest.raises(FedgeoError, match="[0-2] of federation.min_nodes=3 sites were there within"):
            execute(needs_all, deployment, lambda row: None, lambda line: None)
    assert marked(deployment.mark) == []


def stranger(deployment: Deployment, folder: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    """A SuperNode with a key that nobody registered."""
    key = deployment.folder / "stranger.key"
    node_key(key)
    return deployment.join(LocalSite("stranger", folder / "data", folder), key), folder / "supernode.log"


def plaintext(deployment: Deployment, folder: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    """A SuperNode that speaks no TLS."""
    log = folder / "plaintext.log"
    command = (
        *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{deployment.port}"),
        *("--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1"),
    )
    return deployment.launch(command, log, home="home-plaintext"), log


def test_interrupting_ends_all_that_was_started(tmp_path: Path) -> None:
    process = rehearse(tmp_path, "--nodes", "1", "experiment=quickstart")
    log = tmp_path / "run" / "log.txt"
    wait_for("the site", lambda: log.exists() and "sites: 0 site-1" in log.read_text())
    os.kill(process.pid, signal.SIGINT)
    try:
        said = process.communicate(timeout=WAIT)[0]
    finally:
        process.kill()  # where it did not end
    assert process.returncode == 130, said
    assert process.left() == []
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
