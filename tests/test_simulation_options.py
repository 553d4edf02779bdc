"""What a simulation asks of this machine."""

import pytest
import torch

from app.config import load
from app.engines.flower import simulated
from app.engines.launch import gpus


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
