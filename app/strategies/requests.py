"""Requests to all clients, and how many of them may fail to answer."""

from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict

from ..common.errors import FedgeoError
from ..grids.cohort import CohortGrid, named
from ..grids.limits import Limits


def ask(
    grid: CohortGrid, limits: Limits, kind: str, content: RecordDict, deadline: float | None = None
) -> list[Message]:
    """One phase: send ``content`` to every client, and return the replies; failures count as in a round."""
    grid.select()
    requests = [Message(content, client, kind) for client in grid.get_node_ids()]
    replies = grid.send_and_receive(requests, timeout=deadline or limits.deadline)
    return good(kind, replies, limits, grid.names)


def good(what: str, replies: Iterable[Message], limits: Limits, sites: Mapping[int, str]) -> list[Message]:
    """The good replies, sorted by client. Raises FedgeoError with a client's own error where too many failed.

    sites: the names of a deployment's sites, {} in simulation. Of sites at least ``limits.min_nodes`` must be left
    where as many were asked.
    """
    replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
    failed = [reply for reply in replies if reply.has_error()]
    allowed = int(limits.max_failures * len(replies))
    least = min(limits.min_nodes, len(replies)) if sites else 1
    if len(failed) > allowed or len(replies) - len(failed) < least:
        if not failed:
            raise FedgeoError(f"{what}: no client has answered")
        first = failed[0]
        floor = f" and federation.min_nodes={limits.min_nodes} asks for {least}" if sites else ""
        raise FedgeoError(
            f"{what}: {len(failed)} of {len(replies)} clients failed, "
            f"federation.max_failures={limits.max_failures} allows {allowed}{floor}; "
            f"{named(first.metadata.src_node_id, sites)}: {first.error.reason}"
        )
    return [reply for reply in replies if not reply.has_error()]
