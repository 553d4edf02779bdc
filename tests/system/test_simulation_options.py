"""What a simulation asks of this machine."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from app.common.errors import FedgeoError
from app.config.compose import load
from app.launch.job import Job, gpus, plan
from app.launch.simulation import SimulationSuperLink, simulated
from app.launch.sweep import run_on_superlink
from app.launch.workers import Outcome
from scripts import run


@pytest.mark.parametrize(("nodes", "found", "share"), [(16, 1, 0.062), (3, 1, 0.333), (4, 2, 0.5), (2, 8, 1.0)])
def test_nodes_share_the_gpus(nodes: int, found: int, share: float) -> None:
    _, told = simulated(nodes, found)
    assert dict(word.split("=") for word in told.split()) == {
        "num-supernodes": str(nodes),
        "client-resources-num-cpus": "1",
        "client-resources-num-gpus": f"{share:g}",
    }
    assert share * nodes <= found


def test_without_a_gpu_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gpu" not in simulated(4)[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (gpus(load("device=cpu")), gpus(load("device=auto"))) == (0, 2)


def test_a_run_joins_no_ray_cluster_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray of the run's own has a token of its own, whatever the user's is; a named cluster has the user's."""
    monkeypatch.setenv("RAY_ADDRESS", "somebody:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the user's")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    alone, attached = SimulationSuperLink(), SimulationSuperLink("127.0.0.1:6380")
    try:
        assert alone.environment()["RAY_ADDRESS"] == "local"
        assert alone.environment()["RAY_AUTH_MODE"] == "token"
        assert len(alone.environment()["RAY_AUTH_TOKEN"]) == 64
        assert attached.environment()["RAY_ADDRESS"] == "127.0.0.1:6380"
        assert attached.environment()["RAY_AUTH_TOKEN"] == "the user's"
        assert "RAY_AUTH_MODE" not in attached.environment()
    finally:
        alone.stop()
        attached.stop()


@pytest.mark.parametrize("address", ["somewhere", "local", "ray://head:10001", "head:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(FedgeoError, match=r"federation\.ray_address=.*: must be host:port"):
        load(f"federation.ray_address='{address}'")


def test_a_ray_cluster_is_for_simulations_alone(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="federation.ray_address is for engine=flower: engine=inprocess"):
        plan(["engine=inprocess", "federation.ray_address='head:6379'"], run_dir=tmp_path / "run")


def test_a_sweep_is_on_one_ray_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        addresses = [f"{host}:{listening.getsockname()[1]}" for host in ("127.0.0.1", "localhost")]
        jobs = [plan([f"federation.ray_address='{each}'"], run_dir=tmp_path / each) for each in addresses]
    with pytest.raises(FedgeoError, match="one Ray cluster"):
        run_on_superlink(jobs, Ignored())


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_cluster_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    assert run.main([f"federation.ray_address='{host}:{port}'", f"run_dir={tmp_path / 'run'}"]) == 2
    assert f"federation.ray_address={host}:{port}: no Ray cluster answers there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Ignored:
    """Listens to nothing."""

    def begin(self, job: Job) -> None: ...

    def round(self, job: Job, row: dict[str, Any]) -> None: ...

    def note(self, text: str, job: Job | None = None) -> None: ...

    def end(self, outcome: Outcome) -> None: ...
