"""Does joining help? What each client has alone, with the joined model, and with one of its own, put together."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict

from .. import messages
from ..grids.cohort import CohortGrid, named
from ..personal.intervals import wilson
from ..reports import figures
from ..reports.joining import FIGURE, MODELS
from ..runs.run_directory import RunDirectory
from ..strategies.base import FedgeoStrategy
from .round_lines import TrafficTotal
from .rounds import Callback
from .saved_models import SavedModels

log = logging.getLogger(__name__)

FILE = "joining.json"
NOTHING: dict[str, Any] = dict.fromkeys(("alone", "joined", "personal", "sites_better", "sites_worse", "worst_site"))


class AskWhatJoiningGave(Callback):
    """At the end every client tries its models on its own test samples. One that cannot does not undo the run."""

    def __init__(
        self,
        grid: CohortGrid,
        models: SavedModels,
        total: TrafficTotal,
        strategy: FedgeoStrategy,
        results: RunDirectory,
        figures: bool,
    ) -> None:
        self.figures = figures
        self.grid, self.models, self.total, self.strategy, self.results = grid, models, total, strategy, results
        self.found: dict[str, Any] = dict(NOTHING)

    def on_end(self) -> None:
        if not self.models.final:
            return
        trained = torch.from_numpy(trained_with(self.strategy))
        content = RecordDict({messages.ARRAYS: messages.weights_record(self.models.final, {"trained": trained})})
        self.grid.select()
        requests = [Message(content, client, messages.JOINING) for client in self.grid.get_node_ids()]
        told: dict[str, dict[str, Any]] = {}
        for reply in self.grid.send_and_receive(requests, timeout=self.results.config.federation.deadline):
            client = reply.metadata.src_node_id
            if reply.has_error():
                who = named(client, self.grid.names)
                self.results.warn(f"{who} does not say what joining gave: {reply.error.reason}")
            else:
                told[self.grid.names.get(client, f"client {client}")] = messages.read_text(reply.content)
        self.total.add(self.grid.take_traffic())
        if told:
            self.found = in_all(told)
            if self.figures and self.found["alone"] is not None:
                last = "joined" if self.found["personal"] is None else "personal"
                scored = [each for each in told.values() if each["tested"]]
                alone, own = ([each["right"][m] / each["tested"] for each in scored] for m in ("alone", last))
                figures.against_alone(alone, own, self.results.path / "figures" / FIGURE, MODELS[last])
            self.results.write(FILE, json.dumps({**self.found, "sites": told}, indent=2) + "\n")


def trained_with(strategy: FedgeoStrategy) -> np.ndarray:
    """float64 (C,): the samples of each class that the joined model was trained with, over all clients."""
    assert strategy.hello is not None
    if drawn := [counts["total"] for counts in strategy.drawn.clients.values()]:
        return np.asarray(np.sum(drawn, axis=0), dtype=np.float64)
    return strategy.hello.held(strategy.hello.clients).astype(np.float64)


def in_all(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the clients' answers come to. told: by name, as ``client.joining.told`` gives it.

    alone, joined, personal: the accuracy over all clients' own test samples together, 0..1, with its 95 % interval and
    the mean of the clients' accuracies beside it; None where there is none. sites_better, sites_worse: whose model (its
    own, else the joined one) is better or worse than what they have alone, by the paired interval. worst_site: where it
    loses most, or gains least.
    """
    found: dict[str, Any] = dict(NOTHING)
    scored = {name: each for name, each in told.items() if each["tested"]}
    if not scored:
        return found
    last = "personal" if all("personal" in each["right"] for each in scored.values()) else "joined"
    tested = sum(each["tested"] for each in scored.values())
    for model in ("alone", "joined", *(["personal"] if last == "personal" else [])):
        right = sum(each["right"][model] for each in scored.values())
        found[model] = right / tested
        found[f"{model}_interval"] = wilson(right, tested)
        found[f"{model}_mean"] = float(np.mean([each["right"][model] / each["tested"] for each in scored.values()]))
    verdicts = [each["less_alone"][last]["verdict"] for each in scored.values()]
    found["sites_better"], found["sites_worse"] = verdicts.count("better"), verdicts.count("worse")

    def gain(name: str) -> float:
        right = scored[name]["right"]
        return float(right[last] - right["alone"]) / float(scored[name]["tested"])

    found["worst_site"] = min(scored, key=gain)
    found["tested"] = tested
    return found
