"""What goes together: a method, a model and data that do not are refused by name before anything is read."""

import torch

from ..algorithms import registry
from ..algorithms.base import Algorithm
from ..algorithms.registry import local_algorithm
from ..attacks import registry as attacks
from ..augmentation import registry as augmentation
from ..common.errors import FedgeoError
from ..config.schema import Config, EegData
from ..models import registry as models
from ..models.base import Architecture
from ..one_shot.fitted import Fitted
from ..one_shot.from_statistics import FromStatistics


def check(config: Config) -> None:
    """Raises FedgeoError, with one line that names both sides and the way out."""
    architecture = models.load(config.model)
    method, kind, eeg = f"method={config.method.name}", architecture.name, config.data.family == "eeg"
    found = registry.resolve(config.method.target)
    if issubclass(found, Fitted):
        if not eeg:
            raise FedgeoError(f"{method} works on covariances of EEG trials, data={config.data.name} are images")
    elif issubclass(found, FromStatistics) and eeg:
        raise FedgeoError(
            f"{method} makes a head of embeddings, data={config.data.name} is EEG: choose method=mdm or tangent_lr"
        )
    elif eeg and architecture.family != "eeg":
        raise FedgeoError(f"model={kind} reads embeddings, data={config.data.name} is EEG: choose spdnet or eegnet")
    elif not eeg and architecture.family == "eeg":
        raise FedgeoError(f"model={kind} reads EEG trials, data={config.data.name} are images: choose model=linear")
    elif issubclass(found, Algorithm):
        check_algorithm(config, found, architecture)
    if (head := first_head(config)) is not None:
        check_init(architecture, f"model.init={head}", getattr(found, "shares", True), method)
    if getattr(found, "centralised", False) and config.engine == "deployment":
        raise FedgeoError(f"{method} needs all data in one place, which engine=deployment never has")
    if config.federation.classes is not None and config.engine != "deployment":
        raise FedgeoError("federation.classes is for engine=deployment, where sites bring their own class names")
    if isinstance(config.data, EegData) and config.data.split == "leave_subjects_out":
        check_left_out(config)
    if eeg and config.engine == "deployment":
        check_recordings(config)
    if config.steps == "equal":
        check_steps(config)
    check_robust(config, found)
    check_masked(config, found)
    check_personal(config, found)
    check_attack(config, found)
    chosen = augmentation.load(config.augmentation)
    chosen.check(config.privacy)
    if config.data.family not in chosen.families:
        raise FedgeoError(
            f"augmentation={config.augmentation.kind} is for image embeddings, data={config.data.name} is EEG: "
            "choose augmentation=none"
        )


def merges_statistics(config: Config, found: type) -> bool:
    """Whether class statistics of all clients, with means, are merged."""
    if config.data.family == "eeg" or not getattr(found, "shares", True):
        return False
    if issubclass(found, FromStatistics) or first_head(config) is not None:
        return True
    return getattr(found, "trains", True) and bool(augmentation.load(config.augmentation).robust)


def check_robust(config: Config, found: type) -> None:
    """``federation.robust`` must have something to do, and leave what is learned from the sites' differences."""
    how, kind = config.federation.robust, config.augmentation.kind
    if how == "none":
        return
    key = f"federation.robust={how}"
    if not merges_statistics(config, found):
        raise FedgeoError(
            f"{key} is for class statistics, method={config.method.name} augmentation={kind} merges none: set it to "
            "none; for updates choose a method such as geometric_median"
        )
    if issubclass(found, FromStatistics):
        allowed = found.robust
    else:
        chosen = augmentation.load(config.augmentation)
        allowed = chosen.robust if chosen.exchanges else ("clip", "median")
    if how not in allowed:
        name = f"method={config.method.name}" if issubclass(found, FromStatistics) else f"augmentation={kind}"
        raise FedgeoError(f"{key}: {name} cannot do with it: {f'set {allowed[0]} or none' if allowed else 'set none'}")


def asks_what_joining_gave(config: Config) -> bool:
    """Whether clients are asked, after the last round, what they have alone, joined and of their own."""
    return config.personal.mode != "none" or config.federation.test == "own"


def check_personal(config: Config, found: type) -> None:
    """A model of a client's own needs a joined one, own test samples, and some to choose by. Raises FedgeoError."""
    if not asks_what_joining_gave(config):
        return
    mode, federation = config.personal.mode, config.federation
    key = f"personal={mode}" if mode != "none" else "federation.test=own"
    if not getattr(found, "shares", True) or getattr(found, "centralised", False) or issubclass(found, Fitted):
        raise FedgeoError(f"{key}: method={config.method.name} has no joined model to make one from: see method=fedavg")
    if config.data.family == "images" and config.engine != "deployment":
        if federation.test == "shared":
            raise FedgeoError(f"{key}: clients have no test samples of their own: set federation.test=own")
        if mode == "auto" and federation.validation == "server":
            raise FedgeoError(f"{key} chooses by samples that each client keeps: set federation.validation=clients")
    if isinstance(config.data, EegData) and config.data.split == "leave_subjects_out":
        raise FedgeoError(f"{key}: data.split=leave_subjects_out leaves clients no test samples: set data.split=within")


def check_masked(config: Config, found: type) -> None:
    """Masked sums have all clients in them, and whatever is learned must follow from the sum. Raises FedgeoError."""
    if not config.privacy.masked:
        return
    key, method, federation = "privacy.masked=true", f"method={config.method.name}", config.federation
    whole = {"participation": "all", "max_failures": 0, "max_weight": "auto", "robust": "none"}
    for name, needed in whole.items():
        if (given := getattr(federation, name)) not in (needed, None):
            raise FedgeoError(
                f"{key}: federation.{name}={given} treats clients apart, a masked sum has all of them: "
                f"set federation.{name}={needed}"
            )
    if issubclass(found, FromStatistics):
        fits, others = found.from_sums, "lda or ridge"
    elif issubclass(found, Algorithm):
        own = found.aggregate is not Algorithm.aggregate or not found.shares or found.centralised
        fits, others = not issubclass(found, Fitted) and (found.from_mean or not own), "fedavg, fedopt or projavg"
    else:
        fits, others = False, "fedavg, fedopt or projavg"
    if not fits:
        raise FedgeoError(
            f"{key}: {method} needs each client's own answers: choose method={others}, or leave masks out"
        )
    chosen = augmentation.load(config.augmentation)
    if chosen.exchanges and getattr(found, "trains", True) and not chosen.from_sums:
        raise FedgeoError(
            f"{key}: augmentation={config.augmentation.kind} with these settings needs each client's own statistics: "
            "choose augmentation=ggeur with step2=false and covariance=total, repeat, or none"
        )


def check_attack(config: Config, found: type) -> None:
    """An attack is for simulations, and must have something to change."""
    attack = attacks.load(config)
    if attack is None:
        return
    name, method = f"attack={attack.name}", f"method={config.method.name}"
    if config.engine == "deployment":
        raise FedgeoError(f"{name} is for simulations: engine=deployment runs on real sites: set attack=none")
    if getattr(found, "centralised", False) or not getattr(found, "shares", True):
        raise FedgeoError(f"{name}: {method} has no clients that send anything: choose method=fedavg")
    trains = getattr(found, "trains", True) and not issubclass(found, Fitted)
    if attack.changes == "weights" and not trains:
        raise FedgeoError(f"{name} changes weights, which {method} does not send: choose label_flip")
    if attack.changes == "statistics" and not merges_statistics(config, found):
        raise FedgeoError(
            f"{name} changes class statistics, which {method} augmentation={config.augmentation.kind} does not send: "
            "choose label_flip"
        )
    if attack.claimed > 1 and issubclass(found, Fitted):
        raise FedgeoError(
            f"attack.counts={attack.claimed}: {method} counts trials by its own sums: set attack.counts=1"
        )
    if attack.claimed > 1 and config.steps == "equal":
        raise FedgeoError(f"attack.counts={attack.claimed}: steps=equal is planned from true counts: set steps=own")
    if attack.together and (keeps(config, found) or config.training.keep_moments):
        raise FedgeoError(f"{name}: clients of {method} keep a state from round to round: choose method=fedavg")


def keeps(config: Config, found: type) -> bool:
    """Whether clients of the method keep anything from round to round."""
    weights = {"w": torch.zeros(1)}
    return issubclass(found, Algorithm) and bool(local_algorithm(config).client_state(weights))


def check_steps(config: Config) -> None:
    """steps=equal is planned from the clients' true counts. Raises FedgeoError where there are none to plan from."""
    if config.data.family == "eeg":
        raise FedgeoError(f"steps=equal compares augmentations, data={config.data.name} is EEG: set steps=own")
    if config.engine == "deployment" or config.privacy.min_count > 1 or config.privacy.round_counts > 1:
        raise FedgeoError(
            "steps=equal compares arms by the clients' true counts, which engine=deployment, privacy.min_count and "
            "privacy.round_counts hide: set steps=own, or engine=flower and privacy=research"
        )


def check_left_out(config: Config) -> None:
    """Subjects that no client holds validate at the server. Raises FedgeoError."""
    if config.federation.validation == "clients":
        raise FedgeoError(
            "federation.validation=clients: data.split=leave_subjects_out holds whole subjects back from all clients: "
            "set federation.validation=server, or data.split=within"
        )


def check_recordings(config: Config) -> None:
    """What sites can do with recordings of their own. Raises FedgeoError."""
    assert isinstance(config.data, EegData)
    if config.data.split == "leave_subjects_out":
        raise FedgeoError(
            "data.split=leave_subjects_out holds subjects back from all sites, which engine=deployment cannot: set "
            "data.split=within"
        )
    if not config.data.events and not config.data.labels_csv:
        raise FedgeoError(
            "data.events is not set: sites agree on classes by it: 'data.events={left_hand: T1, right_hand: T2}'"
        )


def first_head(config: Config) -> str | None:
    """The one-round head, 'lda' or 'ridge', that the rounds start from; None: the model's own fresh weights.

    ``model.init=auto`` is lda where that takes no further bytes: for a linear head that is shared, where the clients
    send covariances for the augmentation. Else nothing is sent that the method would not send.
    """
    architecture = models.load(config.model)
    if architecture.first_head == "zeros":
        return None
    if architecture.first_head != "auto":
        return architecture.first_head
    found = registry.resolve(config.method.target)
    fits = architecture.is_linear_head and getattr(found, "shares", True) and not getattr(found, "centralised", False)
    return "lda" if fits and augmentation.load(config.augmentation).shares_covariances else None


def check_init(architecture: Architecture, init: str, shares: bool, method: str) -> None:
    """A first head is one layer, and goes from the server to the clients. Raises FedgeoError where it cannot."""
    if not architecture.is_linear_head:
        raise FedgeoError(f"{init} is a linear head: set model.hidden=0")
    if not shares:
        raise FedgeoError(f"{init} is made of all clients' statistics, {method} shares nothing: set model.init=zeros")


def check_algorithm(config: Config, found: type[Algorithm], architecture: Architecture) -> None:
    """What a method says of itself, against the model, the optimiser and the encoder. Raises FedgeoError."""
    method, kind = f"method={config.method.name}", architecture.name
    if found.for_model is not None and kind != found.for_model:
        raise FedgeoError(f"{method} is made for model={found.for_model}: choose that, not model={kind}")
    if (only := architecture.only_method) is not None and found.for_model != kind:
        raise FedgeoError(f"model={kind} is for method={only}, not for {method}: choose model=linear")
    if not found.trains and not architecture.is_linear_head:
        raise FedgeoError(f"{method} is a linear classifier: set model.hidden=0")
    if config.training.optimiser not in found.optimisers:
        allowed = " or ".join(found.optimisers)
        raise FedgeoError(
            f"training.optimiser={config.training.optimiser}: {method} is derived for {allowed}, set that"
        )
    if found.needs_text and config.encoder.name != "open_clip":
        raise FedgeoError(
            f"{method} needs CLIP's text tower: choose encoder=open_clip, encoder={config.encoder.name} has none"
        )


def check_classes(config: Config, classes: int) -> None:
    """What is known once the data is. Raises FedgeoError where the method needs more classes than there are."""
    found = registry.resolve(config.method.target)
    if issubclass(found, Algorithm) and classes < found.min_classes:
        raise FedgeoError(
            f"method={config.method.name} must have at least {found.min_classes} classes, data={config.data.name} has "
            f"{classes}: choose method=fedavg"
        )
