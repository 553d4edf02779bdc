"""The first messages: which place a simulated node has, which site a real one is, and what a run is agreed to be."""

import re
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, RecordDict

from ..common.errors import FedgeoError
from ..common.received import only
from .records import AGREED, CONFIG, PLACE, part
from .schema import whole


def place_request(node: int, agreed: "Agreed | None" = None) -> Message:
    """The first message to a node: which place it has in the simulation.

    agreed: where the server does not know what it is connected to: a simulated node then says which clients it hosts
    too, and a site its name.
    """
    if agreed is None:
        return Message(RecordDict(), node, PLACE)
    content = RecordDict({AGREED: agreed.to_record(), CONFIG: ConfigRecord({"clients": True})})
    return Message(content, node, PLACE)


def place_reply(message: Message, context: Context, hosted: list[int] | None = None) -> Message:
    """A simulated node's answer: partition-id and num-partitions, and the clients that it hosts where that is asked."""
    place = ConfigRecord({"place": list(node_place(context))})
    if hosted is not None:
        place["clients"] = hosted
    return Message(RecordDict({CONFIG: place}), reply_to=message)


def asks_for_clients(content: RecordDict) -> bool:
    """Whether a place request wants to know a simulated node's clients."""
    return CONFIG in content


def is_site(content: RecordDict) -> bool:
    """Whether a reply to a place request is a site's."""
    return "name" in content.config_records.get(CONFIG, {})


def read_hosted(content: RecordDict) -> list[int]:
    """The clients in a place reply that was asked for them. FedgeoError where it names none, or one twice."""
    clients = part(content, "a node", (CONFIG,)).config.get("clients")
    if not isinstance(clients, list) or len(set(clients)) != len(clients):
        raise FedgeoError("a node: it must name each client that it hosts once")
    return [whole(client, "a node", "a client's number") for client in clients]


def read_place(content: RecordDict) -> tuple[int, int]:
    """(partition-id, num-partitions) of a place reply. FedgeoError where it is none."""
    config = part(content, "a node", (CONFIG,)).config
    only(config.keys() - {"clients"}, ("place",), "a node", "field")
    if not isinstance(config["place"], list) or len(config["place"]) != 2:
        raise FedgeoError("a node: its place must be two numbers")
    places = whole(config["place"][1], "a node", "num-partitions", 1)
    return whole(config["place"][0], "a node", "partition-id", most=places - 1), places


@dataclass(frozen=True)
class Agreed:
    """What every message of a deployment says: which run it is of, on which code, over which classes.

    run: 16 hexadecimal digits. classes: in the order of the labels; None before the sites have said theirs.
    """

    run: str
    code: str
    classes: tuple[str, ...] | None = None

    def to_record(self) -> ConfigRecord:
        record = ConfigRecord({"run": self.run, "code": self.code})
        if self.classes is not None:
            record["classes"] = list(self.classes)
        return record

    @staticmethod
    def of(content: RecordDict) -> "Agreed":
        """What a message says. Raises FedgeoError where it says none of it, or not in the right form."""
        if AGREED not in content.config_records:
            raise FedgeoError("the message does not say which run it is of: is the server set to engine=deployment?")
        record = content.config_records[AGREED]
        run, code, classes = record.get("run"), record.get("code"), record.get("classes")
        if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{16}", run) or not isinstance(code, str):
            raise FedgeoError("the message's run and code are not in the right form")
        if classes is None:
            return Agreed(run, code)
        if not isinstance(classes, list) or len({str(name) for name in classes}) != len(classes):
            raise FedgeoError("the message's classes must be a list of different names")
        return Agreed(run, code, tuple(str(name) for name in classes))


def site_request(node: int, agreed: Agreed) -> Message:
    """The first message to a site: who it is."""
    return Message(RecordDict({AGREED: agreed.to_record()}), node, PLACE)


def place_again(request: Message) -> Message:
    """The first question once more, to the node that ``request`` is for, in the terms of the same run."""
    said = {key: record for key, record in request.content.items() if key == AGREED}
    return Message(RecordDict(said), request.metadata.dst_node_id, PLACE)


def site_reply(message: Message, name: str) -> Message:
    """A site's answer: its name."""
    return Message(RecordDict({CONFIG: ConfigRecord({"name": name})}), reply_to=message)


def read_site(content: RecordDict) -> str:
    """The name in a site's answer. FedgeoError for another kind of node, or a name that is none."""
    name = content.config_records[CONFIG].get("name") if CONFIG in content.config_records else None
    if name is not None:
        only(part(content, "a site", (CONFIG,)).config, ("name",), "a site", "field")
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise FedgeoError("a node did not tell a site's name: start it with data-path and name in its node-config")
    return name


def node_place(context: Context) -> tuple[int, int]:
    """(partition-id, num-partitions) of a simulated node. Raises FedgeoError for any other node."""
    if set(context.node_config) != {"partition-id", "num-partitions"}:
        raise FedgeoError(
            f"node-config must hold exactly partition-id and num-partitions, not {sorted(context.node_config)}"
        )
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
