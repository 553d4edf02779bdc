"""The node of a site: one client on the site's own data, which keeps the outcome where the site wants it."""

import functools
import json
import logging
import shutil

import numpy as np

from ..common.errors import Missing, describe
from ..common.files import write_atomic
from ..config.compose import dump
from ..config.node_config import Refusal, Site
from ..config.privacy import effective
from ..config.schema import Config
from ..data.site_dataset import site_dataset
from ..models.base import Weights
from ..runs.saved_model import save_model
from ..training.evaluation import scores_from_confusions
from .node import Node

log = logging.getLogger(__name__)


class SiteNode(Node):
    """Also writes the site's own scores after each round, and at the end the model and its configuration."""

    def __init__(self, config: Config, site: Site, client: int, run: str, classes: tuple[str, ...] | None) -> None:
        super().__init__(config, site_dataset(config, site, classes), [client], site.state / run)
        self.site = site
        self.output = site.output / f"{config.experiment}-{run}"

    def tell(self, error: Exception) -> str:
        """What the server is told of an error. The site's own log has all of it."""
        log.error("%s", describe(error))
        return told(self.site, error)

    def evaluate(self, client: int, number: int, weights: Weights) -> dict[str, dict[int, tuple[np.ndarray, float]]]:
        """As any node's; the figures of all its samples are kept at the site, beside what was told."""
        told = super().evaluate(client, number, weights)
        line: dict[str, object] = {"round": number}
        for part, by_domain in self.scored(client, number, weights, self.whole_dataset).items():
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

    What it shares is bound by the stricter of the run's policy and the site's own.
    """
    bound = config.model_copy(update={"privacy": effective(config.privacy, site.policy)})
    return SiteNode(bound, site, client, run, classes)


def told(site: Site, error: Exception) -> str:
    """What a server is told of an error at ``site``: refusals in full, of others only that there is one.

    An error's text may name files and people.
    """
    if isinstance(error, Refusal | Missing | FloatingPointError):
        return str(error)
    return f"site {site.name} cannot do this ({type(error).__name__}): log.txt in its output-path says why"
