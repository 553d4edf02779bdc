"""What a run may ask of a site: nothing that its own configuration has no use for."""

from flwr.app import RecordDict

from .. import messages
from ..algorithms.registry import local_algorithm
from ..augmentation import registry as augmentation
from ..config.node_config import Refusal
from ..config.schema import Config
from ..one_shot.fitted import Fitted
from ..one_shot.from_statistics import FromStatistics
from ..strategies.base import INIT
from ..strategies.compatibility import asks_what_joining_gave, first_head

USES = (*(messages.STATISTICS, messages.SUMS, messages.GEOMETRY, messages.TRAIN, messages.EVALUATE, messages.JOINING),)
"""The questions whose answers are made of samples."""


def check(kind: str, content: RecordDict, config: Config) -> None:
    """Refuse a message that the run of ``config`` has no use for. Raises Refusal, or FedgeoError for a broken one."""
    method = f"method={config.method.name} augmentation={config.augmentation.kind}"
    if kind == messages.STATISTICS:
        what, wanted = messages.read_statistics(content), statistics(config)
        if what not in wanted:
            raise Refusal(f"{kind}: {method} needs no {what} statistics: it needs {' or '.join(wanted) or 'none'}")
    elif kind == messages.SUMS and not isinstance(local_algorithm(config), Fitted):
        raise Refusal(f"{kind}: {method} fits nothing to sums")
    elif kind == messages.GEOMETRY and not _exchanges(config):
        raise Refusal(f"{kind}: {method} augments with nothing that is shared")
    elif kind == messages.JOINING and not asks_what_joining_gave(config):
        raise Refusal(f"{kind}: personal=none, and nobody asks what joining gave")
    elif kind == messages.TRAIN and not _trains(config):
        raise Refusal(f"{kind}: {method} has no rounds of training")
    elif kind in (messages.TRAIN, messages.EVALUATE):
        last = config.federation.rounds if _trains(config) else 1
        if (number := messages.read_round(content)) > last:
            raise Refusal(f"{kind}: this is round {number}, the run has {last}")
        if kind == messages.TRAIN and config.steps != "equal" and "steps" in content.config_records[messages.CONFIG]:
            raise Refusal(f"{kind}: steps are told, training.epochs={config.training.epochs} say how many there are")


def statistics(config: Config) -> list[str]:
    """The kinds of statistics that the run of ``config`` asks for, as ``messages.read_statistics`` calls them."""
    algorithm = local_algorithm(config)
    if isinstance(algorithm, FromStatistics):
        return ["covariances" if algorithm.covariances else "means"]
    if not _trains(config):
        return []
    wanted = ["augmentation"] if _exchanges(config) else []
    if (head := first_head(config)) and not augmentation.load(config.augmentation).shares_covariances:
        wanted.append("covariances" if INIT[head].covariances else "means")
    return wanted


def _trains(config: Config) -> bool:
    algorithm = local_algorithm(config)
    return algorithm.trains and not isinstance(algorithm, Fitted)


def _exchanges(config: Config) -> bool:
    chosen = augmentation.load(config.augmentation)
    return _trains(config) and chosen.exchanges and config.data.family in chosen.families
