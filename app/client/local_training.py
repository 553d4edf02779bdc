"""One training message on a node: which of the asked clients are trained side by side, and what each comes to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..models.base import Weights
from ..models.weights import unprefixed
from ..training import cohort
from ..training.plain import LocalResult
from .node import MOMENTS, Node


@dataclass(frozen=True)
class Call:
    """What a training message says to all: the round, its learning rate, the weights, and what goes with them.

    digest: of the geometry, '' for none. steps: a client's gradient steps in place of the configured epochs, None
    where the epochs hold; it raises for a client that has none.
    """

    number: int
    digest: str
    rate: float
    weights: Weights
    auxiliary: Weights
    steps: Callable[[int], int | None]


@dataclass
class Participation:
    """The asked clients of ``node`` in one round.

    With ``training=cohort`` a client's whole chunk, as far as it is asked, is trained when the first of it is wanted.
    Which clients make a chunk depends on their numbers and on how many there are in all, never on the node.
    """

    node: Node
    asked: Sequence[int]
    call: Call
    _ready: dict[int, LocalResult | Exception] = field(default_factory=dict)

    def result(self, client: int) -> LocalResult:
        """The client's local training, done and kept; raises what went wrong with this client."""
        call = self.call
        if self.node.together == 1:
            return self.node.train(
                client, call.number, call.digest, call.rate, call.weights, call.auxiliary, call.steps(client)
            )
        if client not in self._ready:
            chunk = client // self.node.together
            self._train([k for k in self.asked if k // self.node.together == chunk])
        outcome = self._ready.pop(client)
        if isinstance(outcome, Exception):
            raise outcome
        self.node.leave(client, call.number, outcome, {})
        return outcome

    def _train(self, clients: Sequence[int]) -> None:
        """Train these clients side by side, or one by one where that fails: an error is its client's alone."""
        call = self.call
        members: dict[int, cohort.CohortClient] = {}
        for client in clients:
            try:
                data, local, kept = self.node.enter(client, call.number, call.digest, call.weights, call.auxiliary)
                members[client] = cohort.CohortClient(
                    data, local, self.node.order(client, call.number), unprefixed(kept, MOMENTS), call.steps(client)
                )
            except Exception as error:
                self._ready[client] = error
        if not members:
            return
        algorithm, settings = self.node.objective, self.node.settings(call.rate)
        try:
            outcomes = cohort.train(list(members.values()), algorithm, settings, self.node.device)
        except Exception as error:
            if len(members) > 1:
                for client in members:
                    self._train([client])
                return
            outcomes = [error]
        self._ready.update(zip(members, outcomes, strict=True))
