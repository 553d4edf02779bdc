"""Reaching: a grid over Flower's own that asks sites which come and go, and never waits without end.

Flower's grid waits for whoever it has asked. Over real networks a site may be away when it is asked, leave in the
middle of its work, and come back: it is asked when it is there, asked again when it has come back, and no longer
waited for once enough others have answered.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from math import floor

from flwr.app import Error, Message
from flwr.serverapp import Grid

from ..messages.flower_private import ErrorCode
from .limits import Limits
from .wrapper import GridWrapper

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
TRIES = 3  # how often a site that leaves in mid-work is asked the same


class RetryingGrid(GridWrapper):
    """``limits`` say how many of those that are asked are enough."""

    def __init__(self, inner: Grid, limits: Limits) -> None:
        super().__init__(inner)
        self.limits = limits

    def enough(self, asked: int) -> int:
        """How many answers a phase can go on with."""
        return max(1, min(self.limits.min_nodes, asked), asked - floor(self.limits.max_failures * asked))

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask, and wait until all have answered, ``timeout`` seconds have passed, or only absent ones are missing.

        Returns the answers; for a site that was away an error reply that says so. A site that has not answered in
        time has no reply.
        """
        asking = [_Asking(message) for message in messages]
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            online = {node.node_id: node.last_activated_at for node in self.inner.get_nodes()}
            self._send([one for one in asking if one.waits and one.node in online], online)
            self._receive([one for one in asking if one.sent])
            for one in asking:
                if one.sent and online.get(one.node, one.since) != one.since:
                    one.lose(Error(ErrorCode.NODE_UNAVAILABLE, "the site started anew in the middle of its work"))
            answered = sum(one.reply is not None and not one.reply.has_error() for one in asking)
            if not any(one.sent for one in asking):
                away = [one for one in asking if one.waits]
                if not away or answered >= self.enough(len(asking)):
                    break
            if end is not None and time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        return [reply for one in asking if (reply := one.outcome()) is not None]

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
                one.lose(reply.error)
            else:
                one.sent, one.reply = None, reply


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

    def lose(self, error: Error) -> None:
        """The site has gone away with the request."""
        log.warning("node %d: %s", self.node, error.reason)
        self.sent, self.lost = None, error
        self.tries += 1

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
