"""How far the server trusts: caps on what a client counts, words on who is far, and how many clients Krum needs."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, Krum, MultiKrum

from app import messages
from app.common.errors import FedgeoError
from app.config.compose import load
from app.geometry.class_statistics import gather
from app.messages.flower_private import identify
from app.strategies.compatibility import check
from app.strategies.trust import Trust, check_tolerance

identify()


def reply(client: int, value: float, examples: float) -> Message:
    request = Message(RecordDict(), client, messages.TRAIN)
    weights = {"b": np.full(2, -value, np.float32), "w": np.full((2, 3), value, np.float32)}
    metrics = messages.metrics_record({"num-examples": examples, "train_loss": 1.0})
    content = RecordDict({messages.ARRAYS: messages.view_record(weights), messages.METRICS: metrics})
    return Message(content, reply_to=request)


SENT = messages.to_record({"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)})


def examples(replies: list[Message]) -> list[float]:
    return [messages.read_update(each).examples for each in replies]


def test_a_reply_weighs_at_most_so_many_times_the_median() -> None:
    told = [100.0, 120.0, 80.0, 1e8]
    replies = [reply(k, 1.0 + k / 10, n) for k, n in enumerate(told)]
    assert examples(Trust(None).updates(1, replies, SENT, {})) == told
    assert examples(Trust(3.0).updates(1, replies, SENT, {})) == [100, 120, 80, 330]
    assert messages.read_loss(replies[3].content) == [(330.0, 1.0)]


def test_an_update_far_from_the_others_is_noticed_once(caplog: pytest.LogCaptureFixture) -> None:
    trust, values = Trust(), (1.0, 1.2, 0.9, 1.1, 50.0)
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            trust.updates(number, [reply(k, v, 10) for k, v in enumerate(values)], SENT, {4: "north"})
    assert list(trust.noticed) == [4]
    assert trust.noticed[4].startswith("round 1: client 4 (north): its weights lie ")
    assert len(caplog.records) == 1
    quiet = Trust()
    quiet.updates(1, [reply(k, v, 10) for k, v in enumerate((1.0, 50.0))], SENT, {})
    assert quiet.noticed == {}  # of two nobody can tell


def test_counts_of_statistics_are_capped_by_client() -> None:
    rng = np.random.default_rng(0)
    parts = {k: gather(rng.standard_normal((20, 4)), np.arange(20) % 2) for k in range(5)}
    parts[4] = replace(parts[4], counts=1_000_000 * parts[4].counts)
    held = {0: 20, 1: 20, 2: 20, 3: 20, 4: 20_000_000}
    found = Trust(3.0).statistics(parts, held, ("a", "b"), {})
    assert [part.counts.tolist() for part in found.values()] == [[10, 10]] * 4 + [[30, 30]]
    assert all(Trust().statistics(parts, held, ("a", "b"), {})[k] is parts[k] for k in parts)


def test_statistics_far_from_the_others_name_client_and_class() -> None:
    rng = np.random.default_rng(0)
    parts = {k: gather(rng.standard_normal((40, 4)) + 9 * (k == 2), np.arange(40) % 2) for k in range(5)}
    trust = Trust()
    trust.statistics(parts, dict.fromkeys(parts, 40), ("cat", "dog"), {})
    assert list(trust.noticed) == [2] and trust.noticed[2].startswith("client 2: its mean lies ")
    assert trust.noticed[2].endswith((", in class cat", ", in class dog"))


@pytest.mark.parametrize(
    ("strategy", "clients", "message"),
    [
        (Krum(num_malicious_nodes=2), 6, r"Krum needs 2 f \+ 3 = 7 clients a round .*there are 6: set it to at most 1"),
        (Bulyan(num_malicious_nodes=2), 10, r"Bulyan needs 4 f \+ 3 = 11 .* there are 10: set it to at most 1"),
        (Krum(), 2, "there are 2: it needs three at the least"),
        (MultiKrum(num_malicious_nodes=2, num_nodes_to_select=7), 10, "can choose 1 to n - f - 2 = 6"),
        (MultiKrum(num_malicious_nodes=-1), 10, "num_malicious_nodes=-1: must be at least 0"),
    ],
)
def test_too_few_clients_for_krum_and_bulyan_are_refused(strategy: FedAvg, clients: int, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        check_tolerance(strategy, clients)


def test_enough_clients_are_enough() -> None:
    check_tolerance(Krum(num_malicious_nodes=2), 7)
    check_tolerance(MultiKrum(num_malicious_nodes=2, num_nodes_to_select=6), 10)
    check_tolerance(Bulyan(num_malicious_nodes=1), 7)
    check_tolerance(FedAvg(), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["augmentation=none"], "method=fedavg augmentation=none merges none"),
        (["augmentation=fedmix"], "augmentation=fedmix merges none"),
        (["augmentation=shift"], "augmentation=shift cannot do with it: set clip or none"),
        (["augmentation.step2=true"], "augmentation=ggeur cannot do with it: set clip or none"),
        (["method=means_only"], "method=means_only cannot do with it: set clip or none"),
        (["method=local"], "method=local augmentation=ggeur merges none"),
    ],
)
def test_a_robust_merge_where_it_has_nothing_to_do_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        check(load(["federation.robust=median", *words]))


def test_the_cap_is_ours_where_sites_are_real_or_a_robust_merge_is_asked_for() -> None:
    assert load([]).max_weight is None
    assert load(["engine=deployment"]).max_weight == load(["federation.robust=clip"]).max_weight == 3.0
    assert load(["engine=deployment", "federation.max_weight=null"]).max_weight is None
    assert load(["federation.max_weight=5"]).max_weight == 5.0
