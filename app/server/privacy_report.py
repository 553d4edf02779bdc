"""What a run's privacy policies let clients report, and what they leave out, for the summary and report."""

from itertools import compress
from typing import Any

from ..config.privacy import scoring_step, smallest_reported
from ..strategies.base import FedgeoStrategy

NO_BOUND = "There is no bound: all of every class is shared, and the mean of a class's one sample is that sample."
SCORED_SAMPLES = (
    "Scores are over the {part} samples that may be reported: of each class at each client the multiple of {step} "
    "below what it holds, the same ones in every round. Right and wrong ones are told in multiples of {step} too, so "
    "that a client's accuracy is off by up to {half} samples."
)


def privacy_report(strategy: FedgeoStrategy | None) -> dict[str, Any] | None:
    """The strictest of the clients' policies, what it means, and what was left out; None before the handshake.

    Nothing here says how many samples of a class that is left out a client has, or that it has any.
    """
    if strategy is None or strategy.hello is None:
        return None
    handshake, names = strategy.hello, strategy.sites
    privacy, bound = handshake.privacy, smallest_reported(handshake.privacy)
    meaning = []
    if bound == privacy.min_total == 1:
        meaning.append(NO_BOUND)
    if bound > 1:
        meaning.append(f"A class with fewer than {bound} training samples at a client is left out, of training too.")
        if not strategy.central:
            tested = not strategy.evaluated or any(parts["test"] for parts in strategy.evaluated.values())
            part = "test" if tested else "validation"  # the server may hold the test samples
            step = scoring_step(privacy)
            meaning.append(SCORED_SAMPLES.format(part=part, step=step, half=step // 2))
    who = {client: f"site {name}" for client, name in names.items()}
    left_out = [
        f"{who.get(client, f'client {client}')}: fewer than {bound} samples of every class: it takes no part"
        for client in handshake.silent
    ]
    for client, counts, own in zip(handshake.clients, handshake.counts, handshake.bounds, strict=True):
        if own > 1 and (missing := ", ".join(compress(handshake.classes, counts == 0))):
            one = who.get(client, f"client {client}")
            left_out.append(f"{one}: fewer than {own} training samples, or none, left out: {missing}")
    left_out += [
        f"class {name}: fewer than {privacy.min_total} in all: nothing of it is sent to all"
        for name in strategy.left_out
    ]
    return {**privacy.model_dump(), "meaning": meaning, "left_out": left_out}
