"""The ClientApp's handlers: one a message type, each decodes, calls the node, and encodes."""

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .. import messages
from . import masked_sums, node_context, stock
from .joining import read_trained
from .local_training import Call, Participation
from .node import Node
from .node_context import node_of
from .site_node import SiteNode

app = ClientApp(mods=[node_context.guard])


def answer(message: Message, here: Node, one: Callable[[int, RecordDict], RecordDict]) -> Message:
    """The reply of all clients that the message asks on this node."""
    return messages.answer(message, here.clients, one, here.tell)


@app.query("place")
def place(message: Message, context: Context) -> Message:
    """Which place in the simulation this node has, or which site it is."""
    return node_context.place(message, context)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Who the clients are: classes, dimension, domain, counts, code. Their samples are read and encoded here."""
    here = node_of(message, context)

    def one(client: int, _: RecordDict) -> RecordDict:
        here.prepare(client)
        return messages.text_content(here.hello(client))

    return answer(message, here, one)


@app.query("stats")
def statistics(message: Message, context: Context) -> Message:
    """Each client's class statistics."""
    here = node_of(message, context)
    what, roster = messages.read_statistics(message.content), masked_sums.asked(message.content, here)

    def one(client: int, _: RecordDict) -> RecordDict:
        if roster is not None:
            return messages.masked_reply(masked_sums.statistics(here, client, roster, what))
        return RecordDict({messages.ARRAYS: messages.to_record(here.statistics(client, what))})

    return answer(message, here, one)


@app.query("sums")
def sums(message: Message, context: Context) -> Message:
    """Each client's answer to a question of a fitted method."""
    here = node_of(message, context)
    question, asked = messages.read_question(message.content)

    def one(client: int, _: RecordDict) -> RecordDict:
        return RecordDict({messages.ARRAYS: messages.weights_record(here.answer(client, question, asked))})

    return answer(message, here, one)


@app.query("initial")
def initial(message: Message, context: Context) -> Message:
    """The model's initial weights: what a ServerApp starts from that has no model of its own."""
    here = node_of(message, context)
    content = stock.initial_content(here)
    if messages.is_stock(message.content):
        return Message(content, reply_to=message)
    return answer(message, here, lambda *_: content)


@app.train("geometry")
def geometry(message: Message, context: Context) -> Message:
    """Keep the global geometry, and say what each client will draw from it."""
    here = node_of(message, context)
    arrays = messages.request(message.content, (messages.ARRAYS, messages.CONFIG)).arrays
    digest = messages.read_digest(message.content)

    def one(client: int, _: RecordDict) -> RecordDict:
        here.geometry_store.keep(digest, arrays)  # only for a client that this node hosts
        figures, counts = here.describe(client, digest)
        return messages.described_reply(figures, counts)

    return answer(message, here, one)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count each client's own validation and test samples right and wrong."""
    here = node_of(message, context)
    if messages.is_stock(message.content):
        return stock.evaluate(message, here, None if isinstance(here, SiteNode) else messages.node_place(context))
    weights, auxiliary = messages.read_weights(message.content)
    here.check_weights(weights, auxiliary)
    number = messages.read_round(message.content)

    def one(client: int, _: RecordDict) -> RecordDict:
        return messages.evaluate_reply(here.evaluate(client, number, weights), len(here.dataset.classes))

    return answer(message, here, one)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One participation: train from the global weights."""
    here = node_of(message, context)
    if messages.is_stock(message.content):
        return stock.train(message, here)
    weights, auxiliary = messages.read_weights(message.content)
    here.check_weights(weights, auxiliary, training=True)
    number, digest = messages.read_round(message.content), messages.read_digest(message.content)
    call = Call(
        number,
        digest,
        messages.read_rate(message.content, here.config.training.lr),
        weights,
        auxiliary,
        steps=lambda client: messages.read_steps(message.content, client),
    )
    roster = masked_sums.asked(message.content, here)
    participation = Participation(here, messages.asked(message, here.clients), call)

    def one(client: int, _: RecordDict) -> RecordDict:
        result = participation.result(client)
        if roster is not None:
            weights = here.sent(client, call, result.weights)
            examples = here.examples(client, digest)
            return messages.masked_reply(
                masked_sums.update(here, client, roster, number, examples, weights, result.loss)
            )
        watched = here.watch(client, number, result.weights)
        metrics = {"num-examples": here.examples(client, digest), "train_loss": result.loss, **watched}
        sent = here.sent(client, call, result.weights) if here.algorithm.shares else {}
        return messages.train_reply(sent, here.auxiliary(result.auxiliary), metrics)

    return answer(message, here, one)


@app.query("joining")
def joining(message: Message, context: Context) -> Message:
    """What each client has alone, with the joined model, and with a model of its own from it."""
    here = node_of(message, context)
    weights, auxiliary = messages.read_weights(message.content, config=False)
    here.check_weights(weights, {})
    trained = read_trained(auxiliary, len(here.dataset.classes))

    def one(client: int, _: RecordDict) -> RecordDict:
        return messages.text_content(here.joining(client, weights, trained))

    return answer(message, here, one)


@app.query("final")
def final(message: Message, context: Context) -> Message:
    """The run has ended: a site keeps its model."""
    here = node_of(message, context)
    assert isinstance(here, SiteNode)
    weights, auxiliary = messages.read_weights(message.content, config=False)
    here.check_weights(weights, auxiliary)

    def one(client: int, _: RecordDict) -> RecordDict:
        here.keep_final(weights)
        return RecordDict()

    return answer(message, here, one)
