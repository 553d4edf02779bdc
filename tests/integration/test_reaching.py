"""Sites that come and go: who is asked, asked again, waited for, and for how long. Time is played."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from app.config.compose import load
from app.config.schema import Federation
from app.grids import retrying
from app.grids.retrying import RetryingGrid
from app.messages.flower_private import ErrorCode, identify


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Network(Grid):
    """Nodes with a plan: ``online(node, time)`` and what ``answer(node, asked before, time since asked)`` gives.

    What online gives is the node's session, false where it is away.
    """

    def __init__(self, clock: Clock, online: Callable[[int, float], Any], answer: Callable[..., Any]) -> None:
        self.clock, self.online, self.answer = clock, online, answer
        self.sent: list[tuple[str, int, float, Message]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        there = [(node, self.online(node, self.clock.now)) for node in (1, 2, 3)]
        return [NodeInfo(node_id=node, last_activated_at=str(since)) for node, since in there if since]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            assert self.online(node, self.clock.now)
            numbers.append(f"{node}-{len(self.sent)}")
            self.sent.append((numbers[-1], node, self.clock.now, message))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        for number, node, since, message in self.sent:
            before = [n for n, other, *_ in self.sent if other == node].index(number)
            given = self.answer(node, before, self.clock.now - since) if number in wanted else None
            if given is not None:
                message.metadata.__dict__["_message_id"] = number
                reply = Message(given, reply_to=message)
                if isinstance(given, Error):  # Flower reports a lost node under a number of its own
                    reply.metadata.__dict__["_src_node_id"] = 1
                yield reply

    def asked(self, node: int) -> int:
        return sum(other == node for _, other, *_ in self.sent)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Any: ...

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    identify()
    played = Clock()
    monkeypatch.setattr(retrying, "time", played)
    return played


def federation(max_failures: float = 0.0, min_nodes: int = 2) -> Federation:
    return load([f"federation.max_failures={max_failures}", f"federation.min_nodes={min_nodes}"]).federation


LOST = Error(ErrorCode.NODE_UNAVAILABLE, "the node is gone")


def ask(network: Network, rules: Federation, timeout: float = 100.0) -> dict[int, bool]:
    """Node -> whether it gave a good answer; nodes without any reply are left out."""
    requests = [Message(RecordDict(), node, "query.hello") for node in (1, 2, 3)]
    replies = RetryingGrid(network, rules).send_and_receive(requests, timeout=timeout)
    return {reply.metadata.src_node_id: not reply.has_error() for reply in replies}


def at_once(node: int, before: int, waited: float) -> Any:
    return RecordDict()


def test_all_are_asked_once_and_answer(clock: Clock) -> None:
    network = Network(clock, lambda node, now: True, lambda node, before, waited: RecordDict() if waited > 3 else None)
    assert ask(network, federation()) == {1: True, 2: True, 3: True}
    assert len(network.sent) == 3 and clock.now < 5


def test_a_site_that_dies_is_not_waited_for_where_enough_answered(clock: Clock) -> None:
    def online(node: int, now: float) -> bool:
        return node != 2 or now < 60

    def answer(node: int, before: int, waited: float) -> Any:
        return RecordDict() if node != 2 else LOST if waited > 60 else None

    assert ask(Network(clock, online, answer), federation(max_failures=0.4)) == {1: True, 2: False, 3: True}
    assert 60 < clock.now < 63


def test_a_site_that_dies_is_waited_for_until_the_deadline_where_all_are_needed(clock: Clock) -> None:
    def answer(node: int, before: int, waited: float) -> Any:
        return RecordDict() if node != 2 else LOST if waited > 6 else None

    network = Network(clock, lambda node, now: node != 2 or now < 5, answer)
    assert ask(network, federation()) == {1: True, 2: False, 3: True}
    assert 100 <= clock.now < 102


def test_a_site_that_comes_back_is_asked_again(clock: Clock) -> None:
    def online(node: int, now: float) -> bool:
        return node != 2 or now < 5 or now > 40

    def answer(node: int, before: int, waited: float) -> Any:
        return RecordDict() if node != 2 or before else LOST if waited > 10 else None

    network = Network(clock, online, answer)
    assert ask(network, federation()) == {1: True, 2: True, 3: True}
    assert network.asked(2) == 2 and 40 < clock.now < 43


def test_a_site_that_started_anew_unnoticed_is_asked_again(clock: Clock) -> None:
    def online(node: int, now: float) -> str:
        return "second" if node == 2 and now > 7 else "first"

    def answer(node: int, before: int, waited: float) -> Any:
        return RecordDict() if node != 2 or before else None  # the first request went with the first session

    network = Network(clock, online, answer)
    assert ask(network, federation()) == {1: True, 2: True, 3: True}
    assert network.asked(2) == 2 and 7 < clock.now < 9


def test_a_site_that_was_away_is_asked_when_it_is_there(clock: Clock) -> None:
    network = Network(clock, lambda node, now: node != 3 or now > 20, at_once)
    assert ask(network, federation()) == {1: True, 2: True, 3: True}
    assert 20 < clock.now < 23


def test_a_site_that_never_answers_ends_with_the_deadline_and_has_no_reply(clock: Clock) -> None:
    network = Network(clock, lambda node, now: True, lambda node, before, waited: RecordDict() if node != 1 else None)
    assert ask(network, federation(max_failures=0.4)) == {2: True, 3: True}
    assert 100 <= clock.now < 102


def test_a_site_that_is_lost_time_and_again_is_given_up(clock: Clock) -> None:
    network = Network(clock, lambda node, now: True, lambda node, before, waited: LOST if node == 1 else RecordDict())
    assert ask(network, federation()) == {1: False, 2: True, 3: True}
    assert network.asked(1) == retrying.TRIES and clock.now < 10


def test_the_apps_own_errors_are_answers(clock: Clock) -> None:
    broken = Error(1000, "its data cannot be read")
    network = Network(clock, lambda node, now: True, lambda node, before, waited: broken if node == 1 else RecordDict())
    assert ask(network, federation()) == {1: False, 2: True, 3: True}
    assert network.asked(1) == 1 and clock.now < 2


def test_nobody_there_ends_with_the_deadline(clock: Clock) -> None:
    network = Network(clock, lambda node, now: False, at_once)
    assert ask(network, federation(), timeout=30) == {1: False, 2: False, 3: False}
    assert 30 <= clock.now < 32


@pytest.mark.parametrize(
    ("max_failures", "min_nodes", "asked", "enough"),
    [(0.0, 2, 3, 3), (0.34, 2, 3, 2), (0.9, 2, 3, 2), (0.9, 5, 3, 3), (0.5, 1, 1, 1), (1.0, 1, 4, 1)],
)
def test_how_many_are_enough(max_failures: float, min_nodes: int, asked: int, enough: int, clock: Clock) -> None:
    grid = RetryingGrid(Network(clock, lambda *_: True, at_once), federation(max_failures, min_nodes))
    assert grid.enough(asked) == enough
