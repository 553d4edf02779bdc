"""One hostile client of ten: each of these ended a run, or its accuracy, before there was something against it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.client import stock
from app.client.hostile_node import HostileNode
from app.client.node import Node, node
from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal
from tests.running import rounds, run_in_process

EVEN = ("federation.partition=iid", "federation.rounds=10", "training.lr=2", "attack.share=0.1")
HOSTILE = 3  # of ten clients, with seed 1
MARGIN = 0.05  # of accuracy, that an attack may cost where there is something against it


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., float]:
    """The best accuracy of a run with these words, each done once."""
    known: dict[tuple[str, ...], float] = {}

    def of(*words: str) -> float:
        if words not in known:
            known[words] = run_in_process(tmp_path_factory.mktemp("run") / "it", *EVEN, *words)["best"]
        return known[words]

    return of


FEDAVG, TURNED = ("augmentation=none",), ("attack=sign_flip", "attack.factor=10")
LOW = ("augmentation=none", "training.lr=0.1", "federation.rounds=20")  # where weights ten times as large do harm
FLIPPED = ("attack=label_flip", "attack.counts=1000000")
SWAPPED = ("attack=poisoned_statistics", "attack.counts=1000000")
CLIP, MEDIAN = ("federation.robust=clip",), ("federation.robust=median",)


@pytest.mark.parametrize(
    ("method", "attack", "defence", "margin"),
    [
        (LOW, ("attack=scaled",), ("method=geometric_median",), 0.08),
        (FEDAVG, TURNED, ("method=krum",), 0.12),  # the weights of a single client
        *((FEDAVG, TURNED, (f"method={rule}",), MARGIN) for rule in ("multikrum", "bulyan", "fedmedian")),
        *((FEDAVG, TURNED, (f"method={rule}",), MARGIN) for rule in ("centred_clipping", "geometric_median")),
        (("augmentation=ggeur",), TURNED, ("method=geometric_median",), MARGIN),
        (FEDAVG, FLIPPED, ("federation.max_weight=3",), MARGIN),
        (("augmentation=ggeur",), FLIPPED, MEDIAN, MARGIN),
        *((("method=lda",), attack, how, MARGIN) for attack in (FLIPPED, SWAPPED) for how in (CLIP, MEDIAN)),
        *((("method=ridge",), SWAPPED, how, MARGIN) for how in (CLIP, MEDIAN)),
        (("method=means_only",), SWAPPED, CLIP, MARGIN),
        (("method=lda", "encoder.normalise=none"), (*SWAPPED, "attack.spread=1000"), MEDIAN, MARGIN),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_an_attack_that_worked_is_borne(
    accuracy: Callable[..., float],
    method: tuple[str, ...],
    attack: tuple[str, ...],
    defence: tuple[str, ...],
    margin: float,
) -> None:
    unattacked = accuracy(*method)
    assert accuracy(*method, *attack) < unattacked - 2 * margin
    assert accuracy(*method, *attack, *defence) > unattacked - margin


def false_means(patch: pytest.MonkeyPatch, factor: float) -> None:
    """One client's means are so many times as long."""
    honest = Node.statistics

    def lying(self: Node, client: int, what: str = "augmentation") -> dict[str, np.ndarray]:
        arrays = honest(self, client, what)
        return arrays | {"means": factor * arrays["means"]} if client == HOSTILE else arrays

    patch.setattr(Node, "statistics", lying)


@pytest.mark.parametrize("normalise", ["l2", "none"])
@pytest.mark.parametrize("words", [(), ("method=lda",), ("augmentation=none", "model.init=ridge")], ids=" ".join)
def test_a_mean_of_a_million_costs_its_own_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], normalise: str
) -> None:
    false_means(monkeypatch, 1e6)
    words = (*EVEN, *words, f"encoder.normalise={normalise}", "federation.rounds=1", "training.lr=0.1")
    with pytest.raises(FedgeoError, match="query.stats: 1 of 10 clients failed, .* client 3: .* mean squared norm"):
        run_in_process(tmp_path / "refused", *words)
    summary = run_in_process(tmp_path / "without", *words, "federation.max_failures=0.1")
    assert summary["status"] == "completed" and summary["best"] > 0.8


def test_covariances_a_thousand_times_as_wide_cost_their_own_client(tmp_path: Path) -> None:
    words = (*EVEN, "method=lda", "attack=poisoned_statistics", "attack.counts=1", "attack.spread=1000")
    with pytest.raises(FedgeoError, match="client 3: .* class 0 have a mean squared norm"):
        run_in_process(tmp_path / "refused", *words)
    assert run_in_process(tmp_path / "without", *words, "federation.max_failures=0.1")["best"] > 0.9


def test_the_summary_says_who_was_hostile_and_who_was_noticed(tmp_path: Path) -> None:
    summary = run_in_process(tmp_path / "run", *EVEN, *SWAPPED, "method=lda", "federation.robust=median")
    assert summary["attack"] == {"name": "poisoned_statistics", "share": 0.1, "spread": 1.0, "counts": 1000000}
    attacked, noticed = summary["warnings"]
    assert attacked == "attacked on purpose: attack=poisoned_statistics, hostile clients 3"
    assert noticed.startswith("client 3: its mean lies ") and noticed.endswith(tuple(f"class {c}" for c in range(10)))
    honest = run_in_process(tmp_path / "honest", *EVEN, "method=lda")
    assert (honest["attack"], honest["warnings"]) == (None, [])


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
@pytest.mark.parametrize("attack", ["scaled", "noise", "ipm"])
def test_one_that_is_far_from_the_others_is_named_and_alone(tmp_path: Path, attack: str, split: str) -> None:
    words = ("augmentation=none", f"attack={attack}", f"federation.partition={split}", "federation.rounds=1")
    warnings = run_in_process(tmp_path / "run", *EVEN, *words, "training.lr=1")["warnings"]
    (far,) = (words for words in warnings if "as is usual" in words)
    assert far.startswith(f"round 1: client {HOSTILE}: its weights lie 1")  # at least ten times as far


def test_an_honest_client_whose_labels_differ_is_not_called_far(tmp_path: Path) -> None:
    """It lies 5.4 times as far as is usual: the most skewed of ten under a method that lets clients drift apart."""
    skewed = ("federation.partition=dirichlet", "federation.beta=0.1", "federation.rounds=4", "augmentation=none")
    words = ("method=feddyn", "training.lr=4")
    assert run_in_process(tmp_path / "run", *skewed, *words, "seed=1")["warnings"] == []


@pytest.mark.parametrize("attack", ["alie", "ipm"])
def test_hostile_clients_act_together_wherever_they_are_hosted(tmp_path: Path, attack: str) -> None:
    words = (*EVEN, f"attack={attack}", "attack.share=0.4", "training.loop=plain", "federation.rounds=2")
    run_in_process(tmp_path / "one", *words)
    run_in_process(tmp_path / "three", *words, nodes=3)
    assert rounds(tmp_path / "one") == rounds(tmp_path / "three")


def test_a_stock_strategy_is_not_answered_under_attack(tmp_path: Path) -> None:
    config = load(["attack=noise", "augmentation=none", f"run_dir={tmp_path}"])
    with pytest.raises(Refusal, match="attack=noise is for runs with the app's own server"):
        stock.check(node(config, (0, 1), tmp_path, kind=HostileNode))


def test_too_few_clients_for_a_rule_are_told_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match=r"Bulyan needs 4 f \+ 3 = 11 clients a round"):
        run_in_process(tmp_path / "run", *EVEN, "method=bulyan", "method.num_malicious_nodes=2", "augmentation=none")
    with pytest.raises(FedgeoError, match=r"Krum needs 2 f \+ 3 = 7 clients a round .* there are 5"):
        run_in_process(tmp_path / "half", *EVEN, "method=krum", "federation.participation=5", "augmentation=none")
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == ""
