"""The in-process engine: the same ServerApp and ClientApp in this one process, for tests, notebooks and sweeps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from ..messages import CLIENT_ERROR
from ..messages.flower_private import Run, identify

App = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """Nodes that are function calls: each message runs ``client_app(message, context)`` at once, in order."""

    def __init__(
        self,
        client_app: App,
        run_config: dict[str, str],
        nodes: int = 1,
        sites: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        """``nodes`` of a simulation, or the ``sites`` of a deployment by their node-configs."""
        identify()
        self.client_app = client_app
        places = [{"partition-id": place, "num-partitions": nodes} for place in range(nodes)]
        node_configs: list[dict[str, Any]] = places if sites is None else [dict(site) for site in sites]
        self.contexts = {
            1000 + index: Context(
                run_id=1,
                node_id=1000 + index,
                node_config=node_config,
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for index, node_config in enumerate(node_configs)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._call(message) for message in messages]

    def _call(self, message: Message) -> Message:
        try:
            return self.client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as Flower's own engines do: the run goes on with an error reply
            return Message(Error(CLIENT_ERROR, f"{type(error).__name__}: {error}"), reply_to=message)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError("the in-process engine has one run")

    @property
    def run(self) -> Run:
        raise NotImplementedError("the in-process engine has no SuperLink to ask about its run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("messages are answered at once: use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("messages are answered at once: use send_and_receive")
