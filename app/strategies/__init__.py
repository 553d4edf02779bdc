"""Which strategy a configuration asks for."""

import functools
import inspect

from flwr.serverapp.strategy import Strategy

from app import algorithms
from app.algorithms.fitted import Fitted
from app.algorithms.from_statistics import FromStatistics
from app.algorithms.lda import LDA
from app.algorithms.ridge import Ridge
from app.config import Config, Method
from app.data.world import World
from app.errors import FedgeoError
from app.node import code_hash, local_algorithm
from app.strategies.checks import check, check_classes, first_head
from app.strategies.federated import Federated
from app.strategies.fitting import Fitting
from app.strategies.ggeur import GGEUR
from app.strategies.one_round import OneRound
from app.strategies.peers import FedFA, FedMix
from app.strategies.phased import Phased
from app.strategies.rate import Rate
from app.strategies.sharing import NOTHING_DRAWN, Sharing
from app.strategies.shift import Shift
from app.strategies.steps import equal_steps
from app.strategies.untrained import Untrained

__all__ = ["GGEUR", "NOTHING_DRAWN", "Phased", "Sharing", "build", "check"]

SHARING: dict[str, type[Sharing]] = {"repeat": GGEUR, "ggeur": GGEUR, "fedmix": FedMix, "fedfa": FedFA, "shift": Shift}
INIT: dict[str, type[FromStatistics]] = {"lda": LDA, "ridge": Ridge}


def build(config: Config, world: World) -> Phased:
    """The base strategy of ``config.method`` in the wrapper that ``config.augmentation`` needs.

    Raises FedgeoError where the method does not fit what the world holds.
    """
    check_classes(config, len(world.classes))
    rate = Rate(config.training)
    base = build_base(config.method, len(world))
    federation, method = config.federation, local_algorithm(config)
    if method.centralised:  # a round is an epoch
        federation = federation.model_copy(update={"rounds": federation.rounds * config.training.epochs})
    common = (base, federation, rate, config.seed, code_hash())
    central = world.central and method.shares
    if isinstance(base, Federated) and isinstance(base.algorithm, Fitted):
        return Fitting(*common, central=central)
    if isinstance(method, FromStatistics):
        return OneRound(*common, central=central)
    if not method.trains:
        return Untrained(*common, central=central)
    if config.augmentation.kind == "none":
        made = Phased(*common, central=central)
    else:
        made = SHARING[config.augmentation.kind](*common, central=central, augmentation=config.augmentation)
    if (head := first_head(config)) is not None:
        made.init = INIT[head]()
    if config.steps == "equal":
        made.planner = functools.partial(equal_steps, config, method)
    return made


def build_base(method: Method, clients: int) -> Strategy:
    """One of our algorithms, or a Flower strategy named by its class, unchanged."""
    found = algorithms.resolve(method.target)
    if not issubclass(found, Strategy):
        return Federated(algorithms.load(method.target, **method.settings), clients)
    allowed = inspect.signature(found).parameters
    unknown = sorted(set(method.settings) - set(allowed))
    if unknown:
        raise FedgeoError(f"method.{unknown[0]}: {method.name} has no such setting; it has {', '.join(allowed)}")
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_evaluate_nodes": 0, "min_available_nodes": 1}
    return found(**sampling, **method.settings)
