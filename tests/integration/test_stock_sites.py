"""A site answers strategies that know nothing of fedgeo where its policy says so, and its policy holds all the same."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import load_file

import client_app
from app.grids.in_process import InProcessGrid
from app.launch.deployment import POLICY, LocalSite
from app.strategies import FedgeoStrategy
from tests.sites import audit, digit_sites, own_output, run_over_sites

CLASSES = f"federation.classes={[str(label) for label in range(10)]}"
STOCK = ("engine=deployment", "augmentation=none", "training.epochs=1", "federation.rounds=2")


@dataclass(frozen=True)
class OwnSite(LocalSite):
    """A site whose node-config says more."""

    more: tuple[tuple[str, str], ...] = ()

    @property
    def node_config(self) -> dict[str, str]:
        return super().node_config | dict(self.more)


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[LocalSite]:
    return digit_sites(tmp_path_factory.mktemp("dealt"))


@pytest.fixture
def open_sites(dealt: list[LocalSite], tmp_path: Path) -> list[OwnSite]:
    """Sites whose policy is site.yaml's but for ``stock``."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"stock: true\n{POLICY.read_text()}")
    return [OwnSite(site.name, site.data, tmp_path / site.name, (("policy", str(policy)),)) for site in dealt]


def grid_of(sites: list[OwnSite], *overrides: str) -> InProcessGrid:
    words = " ".join(f'"{word}"' for word in (*STOCK, *overrides))
    run_config = {"experiment": "quickstart", "overrides": words}
    return InProcessGrid(client_app.app, run_config, sites=[site.node_config for site in sites])


def ask(grid: InProcessGrid, kind: str, arrays: ArrayRecord | None = None) -> Message:
    """The first site's reply to a message of a stock strategy."""
    content = RecordDict({"config": ConfigRecord({"server-round": 1})})
    if arrays is not None:
        content["arrays"] = arrays
    (reply,) = grid.send_and_receive([Message(content, next(iter(grid.get_node_ids())), kind)])
    return reply


def true_loss(site: LocalSite, number: int) -> float:
    """What the site itself keeps of round ``number``."""
    line = json.loads((own_output(site) / "scores.jsonl").read_text().splitlines()[number - 1])
    return float(line["test"]["loss"])


def test_stock_fedavg_runs_over_sites_under_their_policy(open_sites: list[OwnSite]) -> None:
    grid = grid_of(open_sites, CLASSES, "training.lr=0.5")
    arrays = ask(grid, "query.initial").content.array_records["arrays"]
    result = FedAvg().start(grid, arrays, num_rounds=2)
    scores = [float(result.evaluate_metrics_clientapp[number]["accuracy"]) for number in (1, 2)]
    assert scores[1] >= scores[0] > 0.3
    assert sum(true_loss(site, 2) for site in open_sites) < sum(true_loss(site, 1) for site in open_sites)
    for site in open_sites:
        lines = [line for line in audit(site) if line["message"] != "query.initial"]
        assert [line["message"] for line in lines] == ["train", "evaluate"] * 2
        assert len({line["run"] for line in lines}) == 1 and not any("error" in line for line in lines)
        assert all(line["numbers"]["num-examples"] % 10 == 0 for line in lines)
        assert [sorted(line["numbers"]) for line in lines[:2]] == [
            ["num-examples", "train_loss"],
            ["accuracy", "loss", "num-examples"],
        ]
        assert not any("classes" in line or "confusion" in str(line) for line in lines)
        assert (own_output(site) / "scores.jsonl").read_text().count("\n") == 2


def test_a_site_whose_policy_says_nothing_of_it_refuses(dealt: list[LocalSite], tmp_path: Path) -> None:
    sites = [OwnSite(dealt[0].name, dealt[0].data, tmp_path / "site")]
    grid = grid_of(sites, CLASSES)
    for kind in ("query.initial", "train", "evaluate"):
        reply = ask(grid, kind)
        assert reply.has_error() and "answered only where privacy.stock=true" in reply.error.reason
    assert [line["error"] for line in audit(sites[0])] == [reply.error.reason] * 3


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((), "federation.classes is not set: a stock strategy needs the classes in order"),
        ((CLASSES, "privacy.stock=false"), "answered only where privacy.stock=true"),
        ((CLASSES, "augmentation=ggeur"), "augmentation=ggeur needs all clients' statistics before the rounds"),
    ],
)
def test_runs_that_no_stock_strategy_can_do_are_refused(
    open_sites: list[OwnSite], overrides: tuple[str, ...], reason: str
) -> None:
    reply = ask(grid_of(open_sites, *overrides), "train", ArrayRecord())
    assert reply.has_error() and reason in reply.error.reason and "\n" not in reply.error.reason


def test_a_site_that_agreed_to_other_code_refuses(open_sites: list[OwnSite]) -> None:
    first = open_sites[0]
    changed = OwnSite(first.name, first.data, first.folder, (*first.more, ("code", "0" * 64)))
    reply = ask(grid_of([changed], CLASSES), "query.initial")
    assert reply.has_error() and reply.error.reason.startswith("site site-1 agreed to code 000000000000")


def test_weights_of_another_model_are_refused_without_a_word_about_the_data(open_sites: list[OwnSite]) -> None:
    arrays = ArrayRecord({"linear.weight": Array(np.zeros((10, 3), np.float32))})
    reply = ask(grid_of(open_sites, CLASSES), "train", arrays)
    assert reply.has_error() and reply.error.reason.startswith("site site-1 cannot do this (FedgeoError)")


def test_our_strategy_finds_sites_behind_any_grid_as_a_run_does(open_sites: list[OwnSite], tmp_path: Path) -> None:
    result = FedgeoStrategy(FedAvg(), min_nodes=3, deadline=60).start(grid_of(open_sites), ArrayRecord(), num_rounds=2)
    target = "method.target=flwr.serverapp.strategy:FedAvg"
    run_over_sites(tmp_path / "run", open_sites, *STOCK[1:], target)
    assert result.arrays is not None
    expected = load_file(tmp_path / "run" / "model-final.safetensors")
    assert {name: array.numpy().tobytes() for name, array in result.arrays.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }
    assert result.evaluate_metrics_clientapp[2]["num-examples"] % 10 == 0
