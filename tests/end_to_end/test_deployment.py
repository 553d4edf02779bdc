"""Real processes on loopback: a SuperLink with TLS, SuperNodes with keys, each site with data of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from app.engines.certificates import node_key
from app.engines.deployment import Deployment, LocalSite
from app.engines.launch import execute, plan
from app.engines.link import MARK, free_port
from app.errors import FedgeoError
from tests.conftest import ROOT
from tests.running import rounds
from tests.sites import EEG, audit, digit_sites, eeg_sites, own_output, run_over_sites

pytestmark = pytest.mark.slow
WAIT = 300.0  # seconds that a busy machine may take for what takes a few


def left_over() -> list[int]:
    """Processes of any private SuperLink that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)


def rehearse(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "deploy_local.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def assert_equal_to_in_process(run_dir: Path, sites: list[LocalSite], folder: Path, *overrides: str) -> None:
    """The same run over the same data in this process gives the same numbers to 1e-6, and the same messages."""
    here = [LocalSite(site.name, site.data, folder / site.name) for site in sites]
    run_over_sites(folder / "run", here, *overrides)
    for line, other in zip(rounds(run_dir), rounds(folder / "run"), strict=True):
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


def test_ggeur_over_three_sites_equals_in_process(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = ("experiment=quickstart", "federation.rounds=2")
    done = rehearse("--nodes", "3", *words, f"run_dir={run_dir}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_over() == []
    assert "flower-supernode --root-certificates ca.crt" in done.stdout
    home = tmp_path / "run-sites"
    sites = [LocalSite(f"site-{k}", home / f"site-{k}" / "data", home / f"site-{k}") for k in (1, 2, 3)]
    assert_equal_to_in_process(run_dir, sites, tmp_path / "here", *words)


def test_projavg_over_three_sites_equals_in_process(tmp_path: Path) -> None:
    given = eeg_sites(tmp_path / "given")
    run_dir, words = tmp_path / "run", (*EEG, "federation.rounds=2")
    done = rehearse("--data", *(str(site.data) for site in given), *words, f"run_dir={run_dir}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_over() == []
    sites = [LocalSite(site.name, site.data, tmp_path / "run-sites" / site.name) for site in given]
    assert_equal_to_in_process(run_dir, sites, tmp_path / "here", *words)


def test_strangers_are_refused_and_a_killed_site_does_not_stop_the_others(tmp_path: Path) -> None:
    """Two thirds are enough: the run that loses a site in mid-round ends; one that needs all three fails in words."""
    short = ("experiment=quickstart", "augmentation=none", "federation.rounds=2", "engine=deployment")
    with Deployment(digit_sites(tmp_path)) as deployment:
        job = plan([*short, "federation.max_failures=0.34", f"run_dir={tmp_path / 'run'}"])
        strangers = []

        def after(row: dict[str, Any]) -> None:
            if row["round"] == 1:
                deployment.nodes["site-2"].kill()  # it is at work on round 2, or about to be
                strangers.append(stranger(deployment, tmp_path / "stranger"))
                strangers.append(plaintext(deployment, tmp_path))

        summary = execute(job, deployment, after, lambda line: None)
        assert summary["status"] == "completed"
        assert [(line["clients"], line["failures"]) for line in rounds(tmp_path / "run")] == [(3, 0), (2, 1)]
        assert (own_output(deployment.sites[0]) / "model-final.safetensors").exists()
        assert not (tmp_path / "site-2" / "output" / "model-final.safetensors").exists()

        for process, log in strangers:
            wait_for("the stranger's refusal", lambda process=process: process.poll() is not None)
            assert process.returncode != 0, log.read_text()
        assert deployment.connected() == 2

        needs_all = plan([*short, "federation.min_nodes=3", "federation.deadline=10", f"run_dir={tmp_path / 'all'}"])
        with pytest.raises(FedgeoError, match="2 of federation.min_nodes=3 sites were there within"):
            execute(needs_all, deployment, lambda row: None, lambda line: None)
    assert left_over() == []


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
    command = [sys.executable, str(ROOT / "scripts" / "deploy_local.py"), "--nodes", "2", "experiment=quickstart"]
    process = subprocess.Popen([*command, f"run_dir={tmp_path / 'run'}"], cwd=tmp_path)
    log = tmp_path / "run" / "log.txt"
    wait_for("the sites", lambda: log.exists() and "sites: 0 site-1, 1 site-2" in log.read_text())
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=WAIT) == 130
    assert left_over() == []
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
