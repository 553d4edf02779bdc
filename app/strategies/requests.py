"""Asking all clients something, and how many of them may fail to answer."""

from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict

from ..common.errors import FedgeoError
from ..config.schema import Federation
from ..grids.cohort import CohortGrid


def ask(
    grid: CohortGrid, federation: Federation, kind: str, content: RecordDict, deadline: float | None = None
) -> list[Message]:
    """One phase: ask every client, and return the replies; failures count as in a round."""
    grid.select()
    asked = [Message(content, client, kind) for client in grid.get_node_ids()]
    replies = grid.send_and_receive(asked, timeout=deadline or federation.deadline)
    return good(kind, replies, federation, grid.names)


def good(what: str, replies: Iterable[Message], federation: Federation, sites: Mapping[int, str]) -> list[Message]:
    """The good replies. Raises FedgeoError with a client's own error where too many failed.

    sites: the names of a deployment's sites, {} in simulation. Of sites at least ``federation.min_nodes`` must be left
    where as many were asked.
    """
    replies = list(replies)
    failed = [reply for reply in replies if reply.has_error()]
    allowed = int(federation.max_failures * len(replies))
    least = min(federation.min_nodes, len(replies)) if sites else 1
    if len(failed) > allowed or len(replies) - len(failed) < least:
        first = min(failed, key=lambda reply: reply.metadata.src_node_id)
        floor = f" and federation.min_nodes={federation.min_nodes} asks for {least}" if sites else ""
        raise FedgeoError(
            f"{what}: {len(failed)} of {len(replies)} clients failed, "
            f"federation.max_failures={federation.max_failures} allows {allowed}{floor}; "
            f"{named(first.metadata.src_node_id, sites)}: {first.error.reason}"
        )
    return [reply for reply in replies if not reply.has_error()]


def named(client: int, sites: Mapping[int, str]) -> str:
    """What to call a client in an error."""
    return f"client {client} ({sites[client]})" if client in sites else f"client {client}"
