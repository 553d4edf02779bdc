"""CohortGrid: the server sees one logical client each, whatever node hosts it."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from .. import messages as records
from ..common.errors import MISSING, FedgeoError
from .limits import Limits
from .placement import hosted
from .retrying import HUNG, RetryingGrid
from .wrapper import GridWrapper

log = logging.getLogger(__name__)
Check = Callable[[Message, RecordDict], None]
"""Raises FedgeoError, which names the client, where its part is no answer to what it was asked."""
PLACE_SECONDS = 120.0  # for a site to say who it is, before it is asked again


@dataclass
class Traffic:
    """What went over the grid since it was last taken: array payload in bytes, replies, failures, losses."""

    bytes_up: int = 0
    bytes_down: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    losses: list[tuple[float, float]] = field(default_factory=list)  # (examples, train loss) of each client
    took_part: set[int] = field(default_factory=set)  # clients that trained, or answered a fitted method
    clamped: list[float] = field(default_factory=list)  # SPDnet's clamped fraction of each client, where told

    @property
    def watched(self) -> dict[str, float]:
        """Means over the clients of what they watch in themselves."""
        return {"clamped_fraction": sum(self.clamped) / len(self.clamped)} if self.clamped else {}

    @property
    def trained(self) -> int:
        """How many clients took part in what gave the model."""
        return len(self.took_part)

    @property
    def train_loss(self) -> float | None:
        """The mean of the clients' training losses, weighted by their examples."""
        total = sum(weight for weight, _ in self.losses)
        return sum(weight * loss for weight, loss in self.losses) / total if total else None


class CohortGrid(GridWrapper):
    """A grid over another one. Its node ids are the logical clients 0..K-1.

    Clients of one node that are sent the same content share one message. Every client that is asked gets one
    reply or one error of its own, and replies come in client order. ``select`` narrows the clients that
    strategies see, so that every strategy takes this round's participants and no others.
    """

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self.host: dict[int, int] = {}  # client -> node
        self.names: dict[int, str] = {}  # client -> site, in a deployment
        self.agreed: records.Agreed | None = None  # what every message of a deployment says
        self.peak_memory_mb = 0.0  # of the largest process that answered
        self.check: Check | None = None  # of one client's reply, given what it was asked
        self._selected: list[int] = []
        self._traffic = Traffic()

    def discover(self, clients: int, deadline: float, together: int = 1) -> None:
        """Wait for all nodes of a simulation and learn which clients each of them hosts, ``together`` to a chunk.

        Nodes register late: the first one says how many there are, then that many are waited for.
        Raises FedgeoError when ``deadline`` seconds have passed.
        """
        end = time.monotonic() + deadline
        first = self._wait(1, end)[:1]
        ((_, places),) = self._places(first, end).values()
        nodes = self._wait(places, end)
        for node, (place, _) in self._places(nodes, end).items():
            self.host.update(dict.fromkeys(hosted(clients, place, places, together), node))
        if len(self.host) != clients:
            raise FedgeoError(f"{len(nodes)} nodes answered, but they host {len(self.host)} of {clients} clients")
        self.select()

    def _wait(self, number: int, end: float) -> list[int]:
        while len(nodes := sorted(self.inner.get_node_ids())) < number:
            if time.monotonic() > end:
                raise FedgeoError(f"{len(nodes)} of {number} nodes registered within federation.deadline")
            time.sleep(0.05)
        return nodes

    def _places(self, nodes: list[int], end: float) -> dict[int, tuple[int, int]]:
        replies = _answers(nodes, self._identify(nodes, None, end))
        return {reply.metadata.src_node_id: records.read_place(reply.content) for reply in replies}

    def connect(self, agreed: records.Agreed, limits: Limits) -> None:
        """Find the clients of any grid, of a simulation or a deployment, by asking the nodes who they are.

        Raises FedgeoError where a simulated node fails, or as ``gather`` does for the sites of a deployment.
        """
        end = time.monotonic() + limits.deadline
        nodes = self._wait(1, end)
        first = self._identify(nodes, agreed, end)
        if any(records.is_site(reply.content) for reply in first if not reply.has_error()):
            if type(self.inner).get_nodes is not Grid.get_nodes:  # a SuperLink's, which sites leave and come back to
                self.inner = RetryingGrid(self.inner, limits)
            self.gather(agreed, limits.min_nodes, limits.deadline)
            return
        (_, places), *_ = (records.read_place(reply.content) for reply in _answers(nodes, first))
        nodes = self._wait(places, end)
        for reply in _answers(nodes, self._identify(nodes, agreed, end)):
            for client in records.read_hosted(reply.content):
                if self.host.setdefault(client, reply.metadata.src_node_id) != reply.metadata.src_node_id:
                    raise FedgeoError(f"client {client} is on two nodes")
        if self.clients != list(range(len(self.host))):
            raise FedgeoError(f"clients must be numbered from 0, the nodes host {self.clients}")
        self.select()

    def _identify(self, nodes: list[int], agreed: records.Agreed | None, end: float) -> list[Message]:
        """The nodes' replies and errors to the question of who they are."""
        requests = [records.place_request(node, agreed) for node in nodes]
        return list(self.inner.send_and_receive(requests, timeout=max(1.0, end - time.monotonic())))

    def gather(self, agreed: records.Agreed, least: int, deadline: float) -> None:
        """Wait for at least ``least`` sites of a deployment, and number all that are there in the order of their names.

        A site that refuses is left out, and so are all nodes that call themselves the same: which of them is the site
        nobody here can tell. Raises FedgeoError, with the reasons, when too few said who they are within ``deadline``
        seconds.
        """
        end = time.monotonic() + deadline
        names: dict[int, str] = {}
        refused: dict[int, str] = {}
        twice: set[str] = set()  # names that more than one node has told
        silent: set[int] = set()  # nodes that have not answered once: where enough others are there, they are not asked
        while True:
            new = [node for node in sorted(self.inner.get_node_ids()) if node not in names.keys() | refused.keys()]
            if len(names) >= least:
                new = [node for node in new if node not in silent]
            if not new and len(names) >= least:
                break
            if (left := end - time.monotonic()) <= 0:
                break
            if not new:
                time.sleep(0.2)
                continue
            requests = [records.site_request(node, agreed) for node in new]
            for reply in self.inner.send_and_receive(requests, timeout=min(left, PLACE_SECONDS)):
                node = reply.metadata.src_node_id
                if reply.has_error() and reply.error.reason == HUNG:  # it may be at work still: it is asked again
                    continue
                try:
                    if reply.has_error():
                        raise FedgeoError(reply.error.reason or "it failed")
                    names[node] = records.read_site(reply.content)
                except FedgeoError as error:
                    log.warning("a node is left out: %s", error)
                    refused[node] = str(error)
            silent |= set(new) - names.keys() - refused.keys()
            twice |= {name for name, nodes in Counter(names.values()).items() if nodes > 1}
            for node in [node for node, name in names.items() if name in twice]:
                reason = f"more than one node calls itself {names.pop(node)}: give each site a name of its own"
                log.warning("a node is left out: %s", reason)
                refused[node] = reason
        if len(names) < least:
            reasons = "".join(f"; a node was left out: {reason}" for reason in dict.fromkeys(refused.values()))
            raise FedgeoError(
                f"{len(names)} of federation.min_nodes={least} sites were there within "
                f"federation.deadline={deadline:g} seconds{reasons}"
            )
        for client, node in enumerate(sorted(names, key=lambda node: names[node])):
            self.host[client], self.names[client] = node, names[node]
        if isinstance(self.inner, RetryingGrid):
            self.inner.names = names
        self.agreed = agreed
        log.info("sites: %s", ", ".join(f"{client} {name}" for client, name in self.names.items()))
        self.select()

    def agree(self, classes: Iterable[str], clients: Iterable[int]) -> None:
        """From now on every message tells the classes, and only these clients of a deployment take part."""
        assert self.agreed is not None
        self.agreed = replace(self.agreed, classes=tuple(classes))
        self.keep(clients)

    def keep(self, clients: Iterable[int]) -> None:
        """Only these clients take part from now on."""
        self.host = {client: self.host[client] for client in clients}

    @property
    def clients(self) -> list[int]:
        """All logical clients."""
        return sorted(self.host)

    def select(self, clients: Iterable[int] | None = None) -> None:
        """Let strategies see these clients only; all of them where none are given."""
        self._selected = self.clients if clients is None else sorted(clients)

    def take_traffic(self) -> Traffic:
        """What was exchanged since the last call."""
        taken, self._traffic = self._traffic, Traffic()
        return taken

    def note_loss(self, examples: float, loss: float) -> None:
        """The mean training loss of clients that did not tell theirs one by one."""
        self._traffic.losses.append((examples, loss))

    def get_node_ids(self) -> Iterable[int]:
        return list(self._selected)

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask clients and wait. Returns one reply or error for each that was asked, in client order."""
        requests = {message.metadata.dst_node_id: message for message in messages}
        parts, errors = self._exchange(requests, timeout)
        replies = []
        for client, request in sorted(requests.items()):
            self._traffic.bytes_down += records.payload_bytes(request.content)
            if client in parts:
                self._traffic.bytes_up += records.payload_bytes(parts[client])
                self._traffic.losses += records.read_loss(parts[client])
                self._traffic.clamped += records.read_clamped(parts[client])
                if request.metadata.message_type in (records.TRAIN, records.SUMS, records.STATISTICS):
                    self._traffic.took_part.add(client)
                replies.append(Message(parts[client], reply_to=request))
            else:
                reason = errors.get(client, "no answer")
                if not reason.startswith(MISSING):  # it is asked again
                    self._traffic.failures[client] = reason
                    log.warning("%s, %s: %s", named(client, self.names), request.metadata.message_type, reason)
                replies.append(records.error_reply(request, reason))
        return replies

    def _exchange(
        self, requests: dict[int, Message], timeout: float | None
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """One message a node and content; returns the clients' contents and errors."""
        groups: dict[tuple[int, int], list[int]] = {}
        for client in sorted(requests):
            groups.setdefault((self.host[client], id(requests[client].content)), []).append(client)
        sent = [
            records.cohort_message(requests[group[0]], node, group, self.agreed) for (node, _), group in groups.items()
        ]
        parts: dict[int, RecordDict] = {}
        errors: dict[int, str] = {}
        for reply in self.inner.send_and_receive(sent, timeout=timeout):
            # a node that died answers under another id: its clients stay without answer
            own = [c for c in requests if self.host[c] == reply.metadata.src_node_id]
            if reply.has_error():
                errors.update(dict.fromkeys(own, reply.error.reason or "the node failed"))
                continue
            try:
                peak, answered, failed = records.split(reply.content)
            except FedgeoError as error:
                errors.update(dict.fromkeys(own, str(error)))
                continue
            self.peak_memory_mb = max(self.peak_memory_mb, peak)
            errors.update({client: reason for client, reason in failed.items() if client in own})
            for client in own:  # what a node says of clients that are not its own, or were not asked, does not count
                if client in answered:
                    self._judge(requests[client], answered[client], parts, errors)
        return parts, errors

    def _judge(self, request: Message, part: RecordDict, parts: dict[int, RecordDict], errors: dict[int, str]) -> None:
        """Put one client's part among the good ones, or its fault among the errors."""
        client = request.metadata.dst_node_id
        try:
            if self.check is not None:
                self.check(request, part)
            parts[client] = part
        except FedgeoError as error:
            errors[client] = str(error)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("logical clients are asked with send_and_receive, which keeps their order")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("logical clients are asked with send_and_receive, which keeps their order")


def named(client: int, sites: Mapping[int, str]) -> str:
    """What to call a client. sites: the names of a deployment's sites, {} in simulation."""
    return f"client {client} ({sites[client]})" if client in sites else f"client {client}"


def _answers(nodes: list[int], replies: list[Message]) -> list[Message]:
    """The replies of a simulation's nodes. FedgeoError where one of them failed, or did not answer."""
    for reply in replies:
        if reply.has_error():
            raise FedgeoError(f"a node failed at its first message: {reply.error.reason}")
    if len(replies) < len(nodes):
        raise FedgeoError(f"{len(replies)} of {len(nodes)} nodes answered within federation.deadline")
    return replies
