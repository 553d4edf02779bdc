"""What a run's configuration may hold: every key, its type and its range.

The yaml files in conf/ carry the defaults, so that a wrong value is a one-line error before anything starts.
"""

from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Field

from ..common.targets import written

MAX_WEIGHT = 3.0  # times the median site's, where ``federation.max_weight`` is left to us

Share = Annotated[float, Field(ge=0, le=1)]


Positive = Annotated[int, Field(ge=1)]


Count = Annotated[int, Field(ge=0)]


Rate = Annotated[float, Field(gt=0)]


Target = Annotated[str, AfterValidator(written)]  # 'module:Class', ours in the one form that files hold


class Group(pydantic.BaseModel):
    """A strict, frozen group of settings: unknown keys and wrong types are refused."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenGroup(Group):
    """A group whose further keys are the settings of what it names; that one checks them."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ImageData(OpenGroup):
    """Images or embeddings; ``name`` says which loader (app/data/images/dataset.py), further keys are that loader's."""

    family: Literal["images"]
    name: str
    path: str | None
    download: bool
    bit_depth: Literal[8, 10, 12, 14, 16] | None = None
    test_fraction: Share
    val_fraction: Share


Pair = Annotated[list[float], Field(min_length=2, max_length=2)]


class EegData(OpenGroup):
    """EEG; see conf/data/_eeg.yaml.

    ``kind`` is the name of a file in app/data/eeg/sources, or 'module:Class'. Further keys are its own settings.
    """

    family: Literal["eeg"]
    name: str
    kind: Target
    path: str | None
    task: str | None
    events: dict[str, str | int] | None
    subjects: int | list[int | str] | None
    exclude: list[int] | None
    runs: list[int] | None
    window: Pair
    band: Pair | None
    notch: Rate | None
    resample: Rate | None
    scale: Rate | dict[str | int, Rate]
    channels: Literal["all", "common"] | list[str]
    bad_channels: Literal["refuse", "drop", "interpolate"]
    reference: Literal["none", "average"]
    rename: dict[str, str] | None
    subject_pattern: str | None
    labels_csv: str | None
    windows: Pair | None
    trials_per_class: Positive
    split: Literal["within", "leave_subjects_out"]
    val_fraction: Share
    test_fraction: Share


class Covariances(Group):
    """EEG trials to SPD matrices; pyriemann knows the estimators."""

    estimator: str
    recentre: bool


class Encoder(OpenGroup):
    """The frozen encoder; see conf/encoder."""

    name: str
    normalise: Literal["l2", "none"]
    batch_size: Positive


class Augmentation(OpenGroup):
    """What clients add to their samples; see conf/augmentation.

    ``kind`` is the name of a file in app/augmentation, or 'module:Class'. Further keys are its own settings.
    """

    kind: Target
    target: Positive
    absent: Literal["global_mean", "skip"]
    scale: Literal["sqrt", "lambda"]
    explained: Annotated[float, Field(gt=0, le=1)]
    max_rank: Positive | None
    covariance: Literal["total", "within"]
    step2: bool
    per_prototype: Positive
    precision: Literal["float32", "float64"]
    mix: Annotated[float, Field(ge=0, lt=1)]
    mean_of: Positive
    noise: bool


class Method(OpenGroup):
    """The base method: ``target`` is 'module:Class', the rest its hyper-parameters; see conf/method."""

    name: str
    target: Target


class Model(OpenGroup):
    """The model: ``kind`` is the name of a file in app/models, ``target`` a class 'module:Class' in its place.

    Further keys are the settings of the one or the other; that one checks them.
    """

    kind: str
    target: Target | None = None


class Training(Group):
    """The local loop."""

    loop: Literal["plain", "cohort"]
    epochs: Positive
    batch_size: Positive
    optimiser: Literal["sgd", "adam"]
    lr: Rate
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    schedule: Literal["constant", "plateau"]
    patience: Count
    factor: Annotated[float, Field(gt=0, lt=1)]
    keep_moments: bool


class Federation(Group):
    """Who takes part, with what, and how often."""

    rounds: Positive
    clients: Positive | None
    clients_per_node: Positive | Literal["auto"]
    partition: Literal["iid", "dirichlet", "domain", "domain_dirichlet"]
    partition_file: str | None
    fraction: Annotated[float, Field(gt=0, le=1)]
    beta: Rate
    subjects_per_client: Positive
    min_per_client: Positive
    min_per_class: Count
    participation: Literal["all"] | Annotated[float, Field(gt=0, lt=1)] | Positive
    validation: Literal["server", "clients"] = "server"
    test: Literal["shared", "own"] = "shared"
    weights: Literal["real", "augmented", "equal"]
    max_weight: Literal["auto"] | Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    robust: Literal["none", "clip", "median"]
    max_failures: Share
    min_nodes: Positive
    deadline: Rate
    hello_deadline: Rate
    ray_address: Annotated[str, Field(pattern=r"^[^\s:/]+:\d+$")] | None
    classes: Annotated[list[str], Field(min_length=2)] | None


class Personal(Group):
    """A client's own model from the joined one, after the last round; see conf/personal."""

    mode: Literal["none", "prior", "finetune", "ensemble", "auto"]
    epochs: Positive
    smoothing: Rate


class Attack(OpenGroup):
    """What hostile clients do in a simulation: ``name`` is a file of app/attacks, further keys are its settings.

    share: of the clients that are hostile.
    """

    name: str
    share: Annotated[float, Field(gt=0, le=1)]


class Privacy(Group):
    """What a site shares at most; see conf/privacy/site.yaml and app/config/privacy.py."""

    policy: Literal["research", "site"]
    min_count: Positive
    min_total: Positive
    rank_share: Annotated[float, Field(gt=0, le=1)]
    prototypes: bool
    round_counts: Positive
    masked: bool
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None
    stock: bool
    releases: Positive | None
    encoders: list[str] | None
    targets: list[str] | None
    max_hidden: Count | None
    max_epochs: Positive | None
    max_rounds: Positive | None
    max_size: Positive | None
    min_batch: Positive


class Metric(Group):
    """The score that is reported: its name, and how the final value is read off the rounds."""

    name: Literal["accuracy", "f1_macro"]
    final: Literal["last5", "last", "best"]


class Config(Group):
    """One run, completely described."""

    experiment: str
    variant: Literal["recommended", "paper", "gaussian"]
    seed: Count
    engine: Literal["flower", "inprocess", "deployment"]
    device: Literal["auto", "cpu", "cuda"]
    steps: Literal["own", "equal"]
    run_dir: str | None
    sweep_dir: str | None
    resume: str | None
    cache_dir: str | None
    tracking: Literal["none", "tensorboard"]
    data: Annotated[ImageData | EegData, Field(discriminator="family")]
    encoder: Encoder
    augmentation: Augmentation
    method: Method
    covariances: Covariances
    model: Model
    training: Training
    federation: Federation
    attack: Attack
    personal: Personal
    privacy: Privacy
    metric: Metric

    @property
    def max_weight(self) -> float | None:
        """``federation.max_weight`` as a number; None: there is no cap."""
        chosen = self.federation.max_weight
        if chosen == "auto":
            return MAX_WEIGHT if self.engine == "deployment" or self.federation.robust != "none" else None
        return chosen

    def __hash__(self) -> int:  # lists and mappings among the values have no hash of their own
        return hash(self.model_dump_json())
