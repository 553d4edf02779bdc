"""The ClientApp: one handler a message type, each decodes, calls the node, and encodes."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from app import messages
from app.config import load
from app.node import Node, node, state_folder
from app.seeds import one_thread

app = ClientApp()


def node_of(context: Context) -> Node:
    """The node that this process plays, from the run's configuration and the node's own."""
    config = load(str(context.run_config["overrides"]), experiment=str(context.run_config["experiment"]))
    return node(config, messages.node_place(context), state_folder(config, context.run_id))


@app.query("place")
def place(message: Message, context: Context) -> Message:
    """Which place in the simulation this node has."""
    return messages.place_reply(message, context)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Who the clients are: classes, dimension, domain, counts, code."""
    here = node_of(context)
    return messages.answer(message, here.clients, lambda client, _: messages.text_content(here.hello(client)))


@app.query("stats")
def statistics(message: Message, context: Context) -> Message:
    """Each client's class statistics."""
    here = node_of(context)

    def one(client: int, _: RecordDict) -> RecordDict:
        with one_thread():
            return RecordDict({messages.ARRAYS: messages.to_record(here.statistics(client))})

    return messages.answer(message, here.clients, one)


@app.train("geometry")
def geometry(message: Message, context: Context) -> Message:
    """Keep the global geometry, and say what each client will draw from it."""
    here = node_of(context)
    digest = messages.read_digest(message.content)
    here.keep_geometry(digest, messages.from_record(message.content.array_records[messages.ARRAYS]))

    def one(client: int, _: RecordDict) -> RecordDict:
        with one_thread():
            figures, counts = here.describe_augmentation(client, digest)
        return messages.described_reply(figures, counts)

    return messages.answer(message, here.clients, one)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count each client's own validation and test samples right and wrong."""
    here = node_of(context)
    weights, _ = messages.split_weights(message.content.array_records[messages.ARRAYS])
    number = messages.read_round(message.content)

    def one(client: int, _: RecordDict) -> RecordDict:
        with one_thread():
            return messages.evaluate_reply(here.evaluate(client, number, weights), len(here.world.classes))

    return messages.answer(message, here.clients, one)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One participation: train from the global weights."""
    here = node_of(context)
    number, digest = messages.read_round(message.content), messages.read_digest(message.content)
    rate = messages.read_rate(message.content)
    weights, shared = messages.split_weights(message.content.array_records[messages.ARRAYS])

    def one(client: int, _: RecordDict) -> RecordDict:
        with one_thread():
            result = here.train(client, number, digest, rate, weights, shared)
            watched = here.watch(client, number, result.weights)
        metrics = {"num-examples": here.examples(client, digest), "train_loss": result.loss, "steps": result.steps}
        metrics |= watched
        return messages.train_reply(result.weights, result.extra, metrics)

    return messages.answer(message, here.clients, one)
