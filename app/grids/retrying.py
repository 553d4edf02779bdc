"""Reaching: a grid over Flower's own that asks sites which come and go, and never waits without end.

Flower's grid waits for whoever it has asked. Over real networks a site may be away when it is asked, leave in the
middle of its work, and come back: it is asked when it is there, asked again when it has come back, and no longer
waited for once enough others have answered. A site that has let a deadline pass, as one whose ClientApp has hung does
in every phase, is asked a short question first, and the real one once it has answered that.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor

from flwr.app import Error, Message
from flwr.serverapp import Grid

from ..messages import place_again
from ..messages.flower_private import ErrorCode
from .limits import Limits
from .wrapper import GridWrapper

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
TRIES = 3  # how often a site that leaves in mid-work is asked the same
PING_SECONDS = 60.0  # that a site which has missed a deadline has for the short question, in each phase
SILENT = "it is not waited for until it answers a short question. If its ClientApp has hung, restart its SuperNode"
HUNG = "it has not answered since it let a deadline pass: if its ClientApp has hung, restart its SuperNode"


class RetryingGrid(GridWrapper):
    """``limits`` say how many of those that are asked are enough."""

    def __init__(self, inner: Grid, limits: Limits) -> None:
        super().__init__(inner)
        self.limits = limits
        self.names: Mapping[int, str] = {}  # node -> site, once that is known
        self._silent: dict[int, _Silence] = {}  # nodes that have let a deadline pass

    def enough(self, asked: int) -> int:
        """How many answers a phase can go on with."""
        return max(1, min(self.limits.min_nodes, asked), asked - floor(self.limits.max_failures * asked))

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask, and wait until all have answered, ``timeout`` seconds have passed, or only absent ones are missing.

        Returns the answers; for a site that was away an error reply that says so. A site that has not answered in
        time has no reply, and is not waited for again until it has answered a short question.
        """
        asking = [_Asking(message) for message in messages]
        began = time.monotonic()
        end = None if timeout is None else began + timeout
        while True:
            online = {node.node_id: node.last_activated_at for node in self.inner.get_nodes()}
            self._ping(asking, online)
            self._send([one for one in asking if one.waits and one.node in online.keys() - self._silent.keys()], online)
            self._receive([one for one in asking if one.sent])
            for one in asking:
                if one.sent and online.get(one.node, one.since) != one.since:
                    self._lose(one, Error(ErrorCode.NODE_UNAVAILABLE, "it started anew in the middle of its work"))
            answered = sum(one.reply is not None and not one.reply.has_error() for one in asking)
            if not any(one.sent for one in asking):
                patient = time.monotonic() < began + PING_SECONDS
                hung = set() if patient else self._silent.keys() & online.keys()
                away = [one for one in asking if one.waits and one.node not in hung]
                if not away or answered >= self.enough(len(asking)):
                    break
            if end is not None and time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        for one in asking:
            if one.sent:
                self._silent[one.node] = _Silence(one.since)
                log.warning("%s: no answer within %.0f seconds; %s", self._named(one.node), timeout or 0.0, SILENT)
            elif one.waits and one.node in self._silent:
                one.lost = Error(ErrorCode.NODE_UNAVAILABLE, HUNG)
        return [reply for one in asking if (reply := one.outcome()) is not None]

    def _named(self, node: int) -> str:
        return f"site {self.names[node]}" if node in self.names else f"node {node}"

    def _ping(self, asking: list["_Asking"], online: Mapping[int, str]) -> None:
        """Who of the silent ones has started anew, or has answered the short question, is silent no more."""
        for one in asking:
            silence = self._silent.get(one.node)
            if silence is None or one.node not in online:
                continue
            if online[one.node] != silence.since:
                del self._silent[one.node]
            elif silence.ping is None:
                silence.ping = next(iter(self.inner.push_messages([place_again(one.request)])), None)
            else:
                for reply in self.inner.pull_messages([silence.ping]):
                    if reply.has_error() and reply.error.code in LOST:
                        silence.ping = None
                    else:
                        del self._silent[one.node]
                        log.info("%s: it answers again", self._named(one.node))

    def _send(self, asking: list["_Asking"], online: Mapping[int, str]) -> None:
        """Send what waits to be sent; what the SuperLink does not take waits on."""
        requests = [one.fresh() for one in asking]
        for one, number in zip(asking, list(self.inner.push_messages(requests)) if requests else [], strict=True):
            one.sent, one.since = number or None, online[one.node]

    def _receive(self, asking: list["_Asking"]) -> None:
        """Take what has come."""
        by_number = {one.sent: one for one in asking}
        for reply in self.inner.pull_messages([number for number in by_number if number]) if by_number else []:
            one = by_number[reply.metadata.reply_to_message_id]
            if reply.has_error() and reply.error.code in LOST:
                self._lose(one, reply.error)
            else:
                one.sent, one.reply = None, reply

    def _lose(self, one: "_Asking", error: Error) -> None:
        """The site has gone away with the request."""
        log.warning("%s: %s", self._named(one.node), error.reason)
        one.sent, one.lost = None, error
        one.tries += 1


@dataclass
class _Silence:
    """Of a node that has let a deadline pass: when it had started, and the number of the short question."""

    since: str
    ping: str | None = None


class _Asking:
    """One request on its way: the number of the message that is out, or the reply, or neither while a site is away."""

    def __init__(self, request: Message) -> None:
        self.request = request
        self.node = request.metadata.dst_node_id
        self.sent: str | None = None
        self.since = ""  # when the node that it was sent to had started
        self.reply: Message | None = None
        self.lost: Error | None = None
        self.tries = 0

    @property
    def waits(self) -> bool:
        return self.sent is None and self.reply is None and self.tries < TRIES

    def fresh(self) -> Message:
        """The request as a new message, for one is sent once only."""
        data = self.request.metadata
        return Message(self.request.content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id)

    def outcome(self) -> Message | None:
        """The site's answer or error, under the site's own number; None where it did not answer in time."""
        if self.reply is not None and not self.reply.has_error():
            return self.reply
        if self.sent is not None:
            return None
        error = self.reply.error if self.reply is not None else self.lost
        return Message(error or Error(ErrorCode.NODE_UNAVAILABLE, "the site was not connected"), reply_to=self.request)
