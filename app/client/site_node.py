"""The node of a site: one client on the site's own data, which keeps the outcome where the site wants it."""

import functools
import json
import logging
import shutil
from typing import Any

import numpy as np
from flwr.app import RecordDict

from ..common.errors import Missing, describe
from ..common.files import write_atomic
from ..config.compose import dump
from ..config.node_config import Refusal, Site
from ..config.privacy import RESEARCH, effective, scoring_step
from ..config.schema import Config
from ..config.site_bounds import check_hidden, check_lacking
from ..data.site_dataset import site_dataset
from ..data.site_split import FOLDER, site_split
from ..masking.roster import Roster
from ..messages import EVALUATE, TRAIN
from ..models import registry as models
from ..models.base import Weights
from ..one_shot.fitted import Fitted
from ..reports.joining import site_page
from ..runs.saved_model import save_model
from ..training.evaluation import scores_from_confusions
from .joining import told as told_of_joining
from .masks import MASKS, Masks
from .node import Node
from .releases import Releases, set_digest
from .rounds_asked import answer_round

log = logging.getLogger(__name__)


class SiteNode(Node):
    """Also writes the site's own scores after each round, and at the end the model and its configuration."""

    def __init__(self, config: Config, site: Site, client: int, run: str, classes: tuple[str, ...] | None) -> None:
        dataset = site_dataset(config, site, classes)
        self.own_data = dataset
        super().__init__(config, dataset, [client], site.state / run, site_split(config, site).seed)
        self.site = site
        self.run = run
        self.output = site.output / f"{config.experiment}-{run}"
        most = config.privacy.releases
        self.releases = None if most is None else Releases(site.state / FOLDER, most, site.name)
        self.masks = Masks(site.state / MASKS, run, config.privacy.peers or {})
        if not isinstance(self.algorithm, Fitted):
            chosen = models.load(config.model)
            check_hidden(chosen.hidden_units(dataset.inputs), config.privacy, settable=hasattr(chosen, "hidden"))
            if self.algorithm.trains:
                check_lacking(len(set(dataset.classes) - set(dataset.named)), config.privacy)

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the samples that this run would be told of."""
        return set_digest(self.dataset, self.clients[0])

    def prepare(self, client: int) -> None:
        """As any node; and refused, before the run goes on, where this set of samples would be one too many."""
        super().prepare(client)
        if self.releases is not None:
            self.releases.check(self.digest)

    def hello(self, client: int) -> dict[str, Any]:
        """As any node's; and whether the data deserve a look. What of, and which files, the site's own log says."""
        return super().hello(client) | {"warned": self.own_data.deserves_a_look}

    def admit(self, kind: str, content: RecordDict) -> None:
        """Before a message is answered of samples, count their set, and the round. Raises Refusal for one too many."""
        if self.releases is not None:
            self.releases.admit(self.digest, self.run)
            if kind in (TRAIN, EVALUATE):
                answer_round(self.state / "rounds", kind, content)

    def statistics(self, client: int, what: str = "augmentation") -> dict[str, np.ndarray]:
        """As any node's; those of a set that were sent once are sent again as they were."""
        make = functools.partial(super().statistics, client, what)
        if self.releases is None:
            return make()
        privacy, chosen = self.config.privacy, self.augmentation
        kind, form = (chosen.name, chosen.form(privacy)) if what == "augmentation" else (what, {})
        settings = {
            "augmentation": self.config.augmentation.model_dump(),
            "classes": self.dataset.classes,
            "counts": [privacy.min_count, privacy.round_counts],
        }
        return self.releases.again(self.digest, kind, form, settings, make)

    def joining(self, client: int, weights: Weights, trained: np.ndarray) -> dict[str, Any]:
        """As any node's, and once a run; the exact figures, a page and the site's own model stay in its output."""
        path = self.output / "joining.json"
        if not path.exists():
            found = self.joined(client, weights, trained)
            exact = told_of_joining(found, 1)
            said = told_of_joining(found, scoring_step(self.config.privacy))
            save_model(self.output / "model-personal.safetensors", self.config, found.weights, self.dataset)
            write_atomic(self.output / "joining.html", site_page(exact, self.site.name).encode())
            write_atomic(path, json.dumps({"here": exact, "told": said}, indent=2).encode())
        return dict(json.loads(path.read_text())["told"])

    def class_sums(self, client: int, what: str, roster: Roster) -> np.ndarray:
        """As any node's; of a set whose sums went into those of one roster there is none with another.

        Two sums over rosters that differ would show what the one who came or left has.
        """
        make = functools.partial(super().class_sums, client, what, roster)
        if self.releases is None:
            return make()
        members = {name: roster.keys[other].hex() for other, name in sorted(roster.names.items())}
        form = {"sites": members, "classes": [self.dataset.classes[label] for label in roster.classes]}
        settings = {
            "classes": self.dataset.classes,
            "counts": [self.config.privacy.min_count, self.config.privacy.round_counts],
        }
        return self.releases.again(self.digest, f"masked {what}", form, settings, lambda: {"sums": make()})["sums"]

    def tell(self, error: Exception) -> str:
        """What the server is told of an error. The site's own log has all of it."""
        log.error("%s", describe(error))
        return told(self.site, error)

    def evaluate(self, client: int, number: int, weights: Weights) -> dict[str, dict[int, tuple[np.ndarray, float]]]:
        """As any node's; the figures of all its samples are kept at the site, beside what was told."""
        told = super().evaluate(client, number, weights)
        line: dict[str, object] = {"round": number}
        for part, by_domain in self.scored(client, number, weights, self.whole_dataset, RESEARCH).items():
            if by_domain:
                confusions, losses = zip(*by_domain.values(), strict=True)
                scores = scores_from_confusions(confusions, [None] * len(losses), losses)
                line[part] = {
                    "samples": scores.samples,
                    "accuracy": scores.accuracy,
                    "f1_macro": scores.f1_macro,
                    "loss": scores.loss,
                    "confusion": scores.confusion.tolist(),
                    "told": next((confusion.tolist() for confusion, _ in told[part].values()), None),
                }
        path = self.output / "scores.jsonl"
        before = path.read_text().splitlines() if path.exists() else []
        kept = [text for text in before if json.loads(text)["round"] < number]
        write_atomic(path, "".join(f"{text}\n" for text in [*kept, json.dumps(line)]).encode())
        return told

    def keep_final(self, weights: Weights) -> None:
        """The run has ended: keep its model and configuration, and drop what was only needed on the way."""
        save_model(self.output / "model-final.safetensors", self.config, weights, self.dataset)
        write_atomic(self.output / "config.yaml", dump(self.config).encode())
        shutil.rmtree(self.state, ignore_errors=True)
        log.info("the final model is in %s", self.output)


@functools.lru_cache(maxsize=16)
def site_node(config: Config, site: Site, client: int, run: str, classes: tuple[str, ...] | None) -> SiteNode:
    """The node of ``site`` as ``client`` of ``run``, kept for the next message of the same process.

    config: the run's, with the policy that holds at the site (``bounded``).
    """
    return SiteNode(config, site, client, run, classes)


def bounded(config: Config, site: Site) -> Config:
    """The run's configuration with the policy that holds at the site: the stricter of its own and the site's."""
    return config.model_copy(update={"privacy": effective(config.privacy, site.policy)})


def told(site: Site, error: Exception) -> str:
    """What a server is told of an error at ``site``: refusals in full, of others only that there is one.

    An error's text may name files and people.
    """
    if isinstance(error, Refusal | Missing | FloatingPointError):
        return str(error)
    return f"site {site.name} cannot do this ({type(error).__name__}): log.txt in its output-path says why"
