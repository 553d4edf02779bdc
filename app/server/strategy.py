"""Which strategy a configuration asks for."""

import functools
import inspect
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..algorithms import registry
from ..algorithms.registry import local_algorithm
from ..attacks import registry as attacks
from ..augmentation import registry as augmentation
from ..common.errors import FedgeoError
from ..config.schema import Config, Method
from ..data.federated_dataset import FederatedDataset
from ..one_shot.fitted import Fitted
from ..one_shot.from_statistics import FromStatistics
from ..strategies.algorithm import AlgorithmStrategy
from ..strategies.augmented import AugmentedStrategy
from ..strategies.base import FedgeoStrategy, participants
from ..strategies.compatibility import check_classes, first_head
from ..strategies.equal_steps import equal_steps
from ..strategies.evaluate_only import EvaluateOnly
from ..strategies.fitted import FittedStrategy
from ..strategies.handshake import Handshake
from ..strategies.one_shot import OneShotStrategy
from ..strategies.schedule import LearningRate
from ..strategies.trust import check_tolerance


def build(
    config: Config, dataset: FederatedDataset, *, handshake: Handshake | None = None, folder: Path | None = None
) -> FedgeoStrategy:
    """The base strategy of ``config.method`` in the wrapper that ``config.augmentation`` needs.

    handshake: what a deployment's sites have said already. folder: where the strategy stores what it may have to send
    again. Raises FedgeoError where the method does not fit what the data set holds.
    """
    check_classes(config, len(dataset.classes))
    attacks.hostile(config, len(dataset))  # refused where the share comes to nobody
    base = build_base(config.method)
    check_tolerance(base, participants(config.federation.participation, len(dataset)))
    federation, training, method = config.federation, config.training, local_algorithm(config)
    common: dict[str, Any] = {
        "seed": config.seed,
        "participation": federation.participation,
        "max_failures": federation.max_failures,
        "min_nodes": federation.min_nodes,
        "deadline": federation.deadline,
        "hello_deadline": federation.hello_deadline,
        "max_weight": config.max_weight,
        "robust": federation.robust,
        "masked": config.privacy.masked,
        "classes": federation.classes,
        "learning_rate": LearningRate(
            training.lr, training.schedule, patience=training.patience, factor=training.factor
        ),
        "evaluate": "server" if set(dataset.central) == {"val", "test"} and method.shares else "clients",
        "handshake": handshake,
        "folder": folder,
    }
    if isinstance(base, AlgorithmStrategy) and isinstance(base.algorithm, Fitted):
        return FittedStrategy(base, **common)
    if isinstance(method, FromStatistics):
        return OneShotStrategy(base, **common)
    if not method.trains:
        return EvaluateOnly(base, **common)
    common["init"] = first_head(config)
    if config.steps == "equal":
        common["planner"] = functools.partial(equal_steps, config, method)
    chosen = augmentation.load(config.augmentation)
    return AugmentedStrategy(base, chosen, **common) if chosen.exchanges else FedgeoStrategy(base, **common)


def rounds(config: Config) -> int:
    """How many rounds there are at most: one without training; of a centralised method, epochs."""
    method = local_algorithm(config)
    if isinstance(method, Fitted) or not method.trains:
        return 1
    return config.federation.rounds * (config.training.epochs if method.centralised else 1)


def build_base(method: Method) -> Strategy:
    """One of our algorithms, or a Flower strategy named by its class, unchanged."""
    found = registry.resolve(method.target)
    if not issubclass(found, Strategy):
        return AlgorithmStrategy(registry.load(method.target, **method.settings))
    allowed = inspect.signature(found).parameters
    unknown = sorted(set(method.settings) - set(allowed))
    if unknown:
        raise FedgeoError(f"method.{unknown[0]}: {method.name} has no such setting; it has {', '.join(allowed)}")
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_evaluate_nodes": 0, "min_available_nodes": 1}
    return found(**sampling, **method.settings)
