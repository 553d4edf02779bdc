"""The presets named after data sets: the paper variant is the paper's table, and none of them touches ``data``."""

import pytest
from omegaconf import OmegaConf

from app.common.code import CONF
from app.config.compose import load, method_grid
from app.config.schema import Config
from app.strategies.compatibility import check, first_head

# clients, learning rate, rounds, batch, share of the training data, partition, target; None: one client a domain
TABLE = {
    "cifar10": (10, 1e-2, 100, 64, 1.0, "dirichlet", 2000),
    "cifar100": (10, 1e-1, 100, 64, 1.0, "dirichlet", 2000),
    "tiny_imagenet": (10, 1e-2, 100, 64, 1.0, "dirichlet", 2000),
    "digits": (None, 1e-2, 50, 16, 0.1, "domain", 500),
    "office_caltech": (None, 1e-3, 50, 16, 0.3, "domain", 500),
    "pacs": (None, 1e-3, 50, 16, 0.3, "domain", 500),
    "office_home_lds": (None, 1e-3, 50, 16, 1.0, "domain_dirichlet", 500),
}
DOMAINS = {"digits", "office_caltech", "pacs", "office_home_lds"}


def preset(name: str, variant: str, *more: str) -> Config:
    return load([f"experiment={name}", f"variant={variant}", *more])


@pytest.mark.parametrize("name", TABLE)
def test_the_paper_variant_is_the_settings_table(name: str) -> None:
    config = preset(name, "paper")
    clients, lr, rounds, batch, fraction, partition, target = TABLE[name]
    federation, training, augmentation = config.federation, config.training, config.augmentation
    assert (federation.clients, federation.rounds, federation.fraction) == (clients, rounds, fraction)
    assert (federation.partition, federation.beta, federation.min_per_class) == (partition, 0.1, 0)
    assert (training.lr, training.batch_size, training.epochs) == (lr, batch, 10)
    assert (training.optimiser, training.momentum, training.weight_decay) == ("sgd", 0.9, 1e-5)
    assert (augmentation.scale, augmentation.absent, augmentation.explained) == ("lambda", "skip", 1.0)
    assert (augmentation.target, augmentation.covariance) == (target, "total")
    assert augmentation.step2 == (name in DOMAINS)
    assert not augmentation.step2 or augmentation.per_prototype == 500
    assert (config.data.name, config.metric.final) == (name, "last5")
    assert (config.encoder.name, config.encoder.settings["model"], config.encoder.settings["pretrained"]) == (
        *("open_clip", "ViT-B-16"),
        "openai",
    )


@pytest.mark.parametrize("name", TABLE)
def test_the_gaussian_variant_draws_from_the_gaussian(name: str) -> None:
    config = preset(name, "gaussian")
    targets = {"cifar10": 5000, "cifar100": 500, "tiny_imagenet": 500}
    assert config.augmentation.scale == "sqrt"
    assert config.training.lr == TABLE[name][1]
    if name in targets:
        assert (config.augmentation.target, config.federation.min_per_class) == (targets[name], 1)
    else:  # from both steps: own class and three foreign prototypes
        total = config.augmentation.target + 3 * config.augmentation.per_prototype
        assert total == {"office_home_lds": 50}.get(name, 2000)


@pytest.mark.parametrize("name", [*TABLE, "office_home", "image_folder", "domain_folder"])
def test_presets_set_nothing_in_data_so_that_features_replace_it(name: str) -> None:
    raw = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert isinstance(raw, dict)
    shared = raw["defaults"][0]
    base = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{shared}.yaml"))
    assert isinstance(base, dict)
    shares = {"val_fraction", "test_fraction"}  # which all image data have
    for settings in (raw, base, *raw.get("variants", {}).values(), *base["variants"].values()):
        assert settings.get("data", {}).keys() <= shares
    for variant in ("recommended", "paper"):
        config = preset(name, variant, "data=features", "data.path=made.npz")
        assert (config.data.name, config.data.path) == ("features", "made.npz")
        assert config.federation == preset(name, variant).federation


@pytest.mark.parametrize("variant", ["paper", "gaussian"])
@pytest.mark.parametrize("name", TABLE)
def test_the_paper_s_units_are_those_of_its_coefficients(name: str, variant: str) -> None:
    """Embeddings as the encoder gives them, the paper's coefficients, and all that is not tested on for training."""
    config = preset(name, variant)
    assert config.encoder.normalise == "none"
    assert config.data.val_fraction == 0
    assert config.data.test_fraction == (0.3 if name in DOMAINS else 0.2)
    assert preset(name, variant, "encoder.normalise=l2").encoder.normalise == "l2"


@pytest.mark.parametrize(
    ("method", "paper"),
    [
        ("scaffold", {"server_lr": 0.25}),
        ("feddyn", {"alpha": 0.5}),
        ("fedopt", {"server_lr": 0.5}),
        ("moon", {"mu": 1.0, "tau": 0.5}),
        ("fedproto", {"lambda_": 2.0}),
        ("fedntd", {"beta": 1.0, "tau": 1.0}),
    ],
)
def test_the_paper_s_coefficients_go_with_its_variant(method: str, paper: dict[str, float]) -> None:
    settings = preset("pacs", "paper", f"method={method}").method.settings
    assert {key: settings[key] for key in paper} == paper
    ours = preset("pacs", "recommended", f"method={method}")
    assert ours.encoder.normalise == "l2"
    assert ours.method.settings.keys() == settings.keys()
    (key, values), *_ = method_grid([f"method={method}"]).items()
    assert preset("pacs", "paper", f"method={method}", f"method.{key}={values[0]}").method.settings[key] == values[0]


@pytest.mark.parametrize("method", ["fedprox", "fedavgm", "fedopt", "scaffold", "moon", "feddyn", "fedproto", "fedntd"])
def test_a_method_s_own_coefficient_is_in_its_grid(method: str) -> None:
    settings, grid = load([f"method={method}"]).method.settings, method_grid([f"method={method}"])
    for key, values in grid.items():
        assert settings[key] in values and list(values) == sorted(values)


@pytest.mark.parametrize(
    ("overrides", "head"),
    [
        ([], "lda"),
        (["augmentation=repeat"], "lda"),
        (["model.init=zeros"], None),
        (["model.init=ridge"], "ridge"),
        (["variant=paper"], None),
        # what sends no statistics, has no one layer, or shares no weights begins as ever, and is not refused
        (["augmentation=none"], None),
        (["augmentation=fedfa"], None),
        (["model.hidden=8"], None),
        (["method=local"], None),
        (["method=centralised", "augmentation=none"], None),
        (["method=fedclip", "model=clip_adapter", "augmentation=none"], None),
        (["method=lda"], "lda"),
    ],
)
def test_under_label_skew_rounds_start_from_lda_where_it_costs_nothing(overrides: list[str], head: str | None) -> None:
    config = load(["experiment=cifar10", *overrides])
    check(config)
    assert first_head(config) == head


def test_a_user_s_settings_beat_the_variant_s() -> None:
    config = preset("pacs", "paper", "augmentation=repeat", "training.lr=0.3", "augmentation.scale=sqrt")
    assert (config.augmentation.kind, config.augmentation.scale, config.training.lr) == ("repeat", "sqrt", 0.3)
    assert config.training.weight_decay == 1e-5
