"""What a node answers to a strategy that knows nothing of fedgeo, such as Flower's FedAvg, FedAvgM, FedMedian or Krum.

Such a message names no clients, so that the node answers as ONE client, in the form that Flower's strategies check: one
ArrayRecord, one MetricRecord with a single num-examples. A node of a simulation that hosts several clients trains each
from the global weights and returns the mean of their weights by their examples, with the sum of these. The mean over
nodes is then the mean over clients, up to rounding; a median over nodes, or what Krum picks, is of nodes and not of
clients.

Settings are the run's configuration; the round is the message's ``server-round``, the learning rate its ``lr`` or,
where it has none, ``training.lr``.
"""

import torch
from flwr.app import Message, RecordDict

from .. import messages
from ..algorithms.base import average
from ..config.node_config import Refusal
from ..data.federated_dataset import Samples
from ..messages import EVALUATE, INITIAL, TRAIN
from ..models.base import Weights
from ..one_shot.fitted import Fitted
from .local_training import Call, Participation
from .node import Node
from .scoring import count

ANSWERED = (TRAIN, EVALUATE, INITIAL)  # the messages that may come without a word about the run


def check(here: Node) -> None:
    """Refuse a run that needs more of its server than a mean of weights. Raises Refusal, which names the key."""
    if not here.clients:
        raise Refusal("this node hosts no client: there are more nodes than federation.clients")
    if here.config.attack.name != "none":
        raise Refusal(f"attack={here.config.attack.name} is for runs with the app's own server: set attack=none")
    method, algorithm = f"method={here.config.method.name}", here.algorithm
    if here.augmentation.exchanges:
        raise Refusal(
            f"augmentation={here.config.augmentation.kind} needs all clients' statistics before the rounds: wrap the "
            "strategy, as in GGEUR(FedAvg()), or set augmentation=none"
        )
    if isinstance(algorithm, Fitted) or not algorithm.trains or not algorithm.shares or algorithm.centralised:
        raise Refusal(f"{method} has no rounds of shared training: a stock strategy needs such as method=fedavg")
    signature = here.signature
    if signature.up or any(signature.down) or algorithm.server_state(here.initial()):
        raise Refusal(f"{method} has a server step of its own: choose method=fedavg or method=fedprox for a stock one")


def initial_content(here: Node) -> RecordDict:
    """The weights that every client of the run starts from, as one ArrayRecord. Raises Refusal where it has none."""
    if here.algorithm.needs_text:
        raise Refusal(
            f"method={here.config.method.name} starts from CLIP's text tower, which the server has: give its weights "
            "as the initial arrays"
        )
    return RecordDict({messages.ARRAYS: messages.weights_record(here.initial())})


def train(message: Message, here: Node) -> Message:
    """One participation of all the node's clients: their mean. An error of one is the node's."""
    check(here)
    weights, auxiliary = messages.read_weights(message.content)
    here.check_weights(weights, auxiliary, training=True)
    rate = messages.read_rate(message.content, here.config.training.lr)
    call = Call(messages.read_round(message.content), "", rate, weights, auxiliary, steps=lambda _: None)
    participation = Participation(here, here.clients, call)
    results = [participation.result(client) for client in here.clients]
    examples = [here.examples(client, "") for client in here.clients]
    total = sum(examples)
    loss = sum(n * result.loss for n, result in zip(examples, results, strict=True)) / total
    mean = average((result.weights for result in results), examples)
    reply = messages.train_reply(mean, {}, {"num-examples": total, "train_loss": loss})
    return Message(reply, reply_to=message)


def evaluate(message: Message, here: Node, place: tuple[int, int] | None) -> Message:
    """num-examples, accuracy and loss over test samples: the clients' own, or the node's share of the server's.

    place: (partition-id, num-partitions) of a simulated node. Of P nodes, p scores test[p::P], so that the mean by
    num-examples is the accuracy on all of them.
    """
    check(here)
    weights, auxiliary = messages.read_weights(message.content)
    here.check_weights(weights, auxiliary)
    number = messages.read_round(message.content)
    if "test" in here.dataset.central:
        assert place is not None  # a site's data are its own
        evaluations = [_share(here, weights, *place)]
    else:
        evaluations = [here.evaluate(client, number, weights) for client in here.clients]
    metrics = messages.test_metrics(evaluations)
    if metrics is None:
        raise Refusal("there are no test samples to evaluate: raise data.test_fraction")
    return Message(RecordDict({messages.METRICS: metrics}), reply_to=message)


def _share(here: Node, weights: Weights, place: int, places: int) -> messages.Evaluation:
    """The evaluation of every ``places``-th test sample, from ``place`` on."""
    dataset, model = here.dataset, here.model()
    test = dataset.held_out("test", None)
    model.load(weights)
    model.calibrate(torch.from_numpy(test.x))
    own = slice(place, None, places)
    return count(model, {"test": Samples(test.x[own], test.y[own], test.domain[own])}, dataset)
