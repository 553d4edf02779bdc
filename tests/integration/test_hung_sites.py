"""A site whose ClientApp has hung costs one deadline, and no more until it answers a short question. Time is played."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from app.grids import retrying
from app.grids.retrying import HUNG, RetryingGrid
from app.messages import PLACE
from tests.integration.test_reaching import Clock, Network, clock, federation

__all__ = ["clock"]
DEADLINE = 1000.0


def phases(network: Network, grid: RetryingGrid, number: int) -> list[tuple[float, dict[int, str]]]:
    """Of each phase how long it took, and what became of each node's request: '' for an answer."""
    taken = []
    for _ in range(number):
        began = network.clock.now
        requests = [Message(RecordDict(), node, "train") for node in (1, 2, 3)]
        replies = grid.send_and_receive(requests, timeout=DEADLINE)
        found = {reply.metadata.src_node_id: reply.error.reason if reply.has_error() else "" for reply in replies}
        taken.append((network.clock.now - began, found))
        network.clock.sleep(1)  # the server has to think
    return taken


def hung(answers: Callable[[int, float], bool]) -> Callable[..., Any]:
    """Site 2 is silent but where ``answers(asked before, waited)``; the others answer at once."""
    return lambda node, before, waited: RecordDict() if node != 2 or answers(before, waited) else None


def kinds(network: Network) -> list[str]:
    """What site 2 was asked."""
    return [message.metadata.message_type for _, node, _, message in network.sent if node == 2]


def test_a_hung_site_costs_one_deadline(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    network = Network(clock, lambda node, now: True, hung(lambda before, waited: False))
    grid = RetryingGrid(network, federation(max_failures=0.4))
    grid.names = {2: "berlin"}
    with caplog.at_level(logging.WARNING):
        first, second, third = phases(network, grid, 3)
    assert first[0] >= DEADLINE and first[1] == {1: "", 3: ""}
    for seconds, found in (second, third):
        assert seconds < 2 and found == {1: "", 2: HUNG, 3: ""}
    assert kinds(network) == ["train", PLACE]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("site berlin: no answer within 1000 seconds") and "restart its SuperNode" in said


def test_where_all_are_needed_a_hung_site_has_a_minute_for_the_short_question(clock: Clock) -> None:
    network = Network(clock, lambda node, now: True, hung(lambda before, waited: False))
    (first, _), (second, found) = phases(network, RetryingGrid(network, federation()), 2)
    assert first >= DEADLINE and retrying.PING_SECONDS <= second < retrying.PING_SECONDS + 2
    assert found == {1: "", 2: HUNG, 3: ""}


def test_a_site_that_was_only_slow_is_asked_again_once_it_answers(clock: Clock) -> None:
    slow = hung(lambda before, waited: before > 1 or (before == 1 and waited > 20))
    network = Network(clock, lambda node, now: True, slow)
    (_, first), (seconds, second), (_, third) = phases(network, RetryingGrid(network, federation()), 3)
    assert 2 not in first and second == third == {1: "", 2: "", 3: ""}
    assert 20 < seconds < 23
    assert kinds(network) == ["train", PLACE, "train", "train"]


def test_a_supernode_that_was_restarted_is_asked_at_once(clock: Clock) -> None:
    network = Network(clock, lambda node, now: 1 + (now > DEADLINE), hung(lambda before, waited: before > 0))
    (_, first), (seconds, second) = phases(network, RetryingGrid(network, federation()), 2)
    assert 2 not in first and second == {1: "", 2: "", 3: ""} and seconds < 2
    assert kinds(network) == ["train", "train"]
