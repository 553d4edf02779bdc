"""Which strategy a configuration asks for."""

import functools
import inspect

from flwr.serverapp.strategy import Strategy

from ..algorithms import registry
from ..algorithms.registry import local_algorithm
from ..augmentation import registry as augmentation
from ..common.code import code_hash
from ..common.errors import FedgeoError
from ..config.schema import Config, Method
from ..data.federated_dataset import FederatedDataset
from ..one_shot.fitted import Fitted
from ..one_shot.from_statistics import FromStatistics
from ..one_shot.lda import LDA
from ..one_shot.ridge import Ridge
from ..strategies.algorithm import AlgorithmStrategy
from ..strategies.augmented import AugmentedStrategy
from ..strategies.base import FedgeoStrategy
from ..strategies.compatibility import check_classes, first_head
from ..strategies.equal_steps import equal_steps
from ..strategies.evaluate_only import EvaluateOnly
from ..strategies.fitted import FittedStrategy
from ..strategies.one_shot import OneShotStrategy
from ..strategies.schedule import LearningRate

INIT: dict[str, type[FromStatistics]] = {"lda": LDA, "ridge": Ridge}


def build(config: Config, dataset: FederatedDataset) -> FedgeoStrategy:
    """The base strategy of ``config.method`` in the wrapper that ``config.augmentation`` needs.

    Raises FedgeoError where the method does not fit what the data set holds.
    """
    check_classes(config, len(dataset.classes))
    rate = LearningRate(config.training)
    base = build_base(config.method, len(dataset))
    federation, method = config.federation, local_algorithm(config)
    if method.centralised:  # a round is an epoch
        federation = federation.model_copy(update={"rounds": federation.rounds * config.training.epochs})
    common = (base, federation, rate, config.seed, code_hash())
    central = dataset.central and method.shares
    if isinstance(base, AlgorithmStrategy) and isinstance(base.algorithm, Fitted):
        return FittedStrategy(*common, central=central)
    if isinstance(method, FromStatistics):
        return OneShotStrategy(*common, central=central)
    if not method.trains:
        return EvaluateOnly(*common, central=central)
    chosen = augmentation.load(config.augmentation)
    if chosen.exchanges:
        made: FedgeoStrategy = AugmentedStrategy(base, chosen, *common[1:], central=central)
    else:
        made = FedgeoStrategy(*common, central=central)
    if (head := first_head(config)) is not None:
        made.init = INIT[head]()
    if config.steps == "equal":
        made.planner = functools.partial(equal_steps, config, method)
    return made


def build_base(method: Method, clients: int) -> Strategy:
    """One of our algorithms, or a Flower strategy named by its class, unchanged."""
    found = registry.resolve(method.target)
    if not issubclass(found, Strategy):
        return AlgorithmStrategy(registry.load(method.target, **method.settings), clients)
    allowed = inspect.signature(found).parameters
    unknown = sorted(set(method.settings) - set(allowed))
    if unknown:
        raise FedgeoError(f"method.{unknown[0]}: {method.name} has no such setting; it has {', '.join(allowed)}")
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_evaluate_nodes": 0, "min_available_nodes": 1}
    return found(**sampling, **method.settings)
