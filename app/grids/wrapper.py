"""What a grid over another one does as that one does."""

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ..messages.flower_private import Run


class GridWrapper(Grid):
    """A grid over ``inner``; a subclass changes how clients are asked."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Run) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Run:
        return self.inner.run

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)
