"""The configuration: one line for every fault, overrides that mean what they say, variants in between."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from app.common.code import CONF
from app.common.errors import FedgeoError
from app.config.compose import _compose, dump, known_keys, load
from app.config.schema import Config

FAULTS = [
    ("foo=1", "foo: no such key"),
    ("training.lrr=1", "did you mean training.lr"),
    ("training.lr=abc", "training.lr=abc: must be a valid number"),
    ("training.lr=-1", "training.lr=-1: must be greater than 0"),
    ("augmentation.target=0", "augmentation.target=0: must be greater than or equal to 1"),
    ("augmentation.scale=cubic", "augmentation.scale=cubic: must be 'sqrt' or 'lambda'"),
    ("augmentation=other", "augmentation=other: must be one of "),
    ("federation.rounds=2.5", "federation.rounds=2.5: must be a valid integer"),
    ("federation.participation=0", "federation.participation=0: must be 'all' or "),
    ("federation.participation=1.5", "federation.participation=1.5: must be 'all' or "),
    ("seed=-1", "seed=-1: must be greater than or equal to 0"),
    ("experiment=nothing", "experiment=nothing: must be one of "),
    ("variant=best", "variant=best"),
    ("experiment=fedspdnet_weibo2014 variant=gaussian", "has no such variant: must be one of recommended, paper"),
    ("quickstart", "quickstart: not KEY=VALUE; did you mean experiment=quickstart?"),
    ("seed", "seed: not KEY=VALUE: give seed a value"),
    ("nonsense", "nonsense: not KEY=VALUE"),
    ("experiment=eeg_demo data.band=8", "data.band=8: must be a valid list"),
    ("experiment=eeg_folder data.events=T1", "data.events=T1: must be a mapping, in quotes: 'data.events={name: value"),
    ("engine=fast", "engine=fast: must be 'flower', 'inprocess' or 'deployment'"),
]


@pytest.mark.parametrize(("override", "message"), FAULTS)
def test_a_fault_is_one_line_that_names_the_key(override: str, message: str) -> None:
    with pytest.raises(FedgeoError) as caught:
        load(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sentence_is_no_override() -> None:
    with pytest.raises(FedgeoError):
        load(["run it please"])


def test_the_default_is_the_quickstart() -> None:
    config = load()
    assert (config.experiment, config.seed, config.augmentation.kind) == ("quickstart", 1, "ggeur")
    assert config.federation.clients == 10
    assert load(experiment="quickstart") == config


def test_overrides_beat_the_experiment() -> None:
    config = load("federation.rounds=3 augmentation=repeat training.lr=0.5")
    assert (config.federation.rounds, config.augmentation.kind, config.training.lr) == (3, "repeat", 0.5)


def test_participation_is_all_a_share_or_a_number() -> None:
    assert load("federation.participation=0.5").federation.participation == 0.5
    assert load("federation.participation=3").federation.participation == 3


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("[!_]*.yaml")))
@pytest.mark.parametrize("variant", ["recommended", "paper", "gaussian"])
def test_every_preset_composes_in_every_variant(name: str, variant: str) -> None:
    try:
        config = load([f"experiment={name}", f"variant={variant}"])
    except FedgeoError as error:
        assert "has no such variant" in str(error)
        assert variant != "recommended"
    else:
        assert isinstance(config, Config)
        assert config.experiment == name


def test_method_and_encoder_keep_their_own_settings() -> None:
    config = load("method=fedprox method.mu=0.25 encoder.size=4")
    assert config.method.settings == {"mu": 0.25}
    assert config.encoder.settings == {"size": 4}
    assert "mu: 0.25" in dump(config)


def test_known_keys_are_dotted() -> None:
    assert {"seed", "training.lr", "federation.rounds"} <= set(known_keys())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("seed=7", "experiment=pacs", "method=scaffold", "method.server_lr=0.3", "+method.own=1"),
        ("method=ccvr", "training.lr=0.7"),  # whose rate is another key's
        ("experiment=eeg_folder", "data.path='/a b'", "data.events={a: T1, b: T2}", "~data.window"),
        ("method=fedclip", "model=clip_adapter", "data.val_fraction=0"),
    ],
)
def test_values_set_after_the_files_are_composed_are_as_hydra_sets_them(words: tuple[str, ...]) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = OmegaConf.to_container(compose("config", overrides=list(words)), resolve=True)
    assert isinstance(whole, dict)
    ours = _compose(words)
    assert ours.pop("experiment") == next((w[11:] for w in words if w.startswith("experiment=")), "quickstart")
    del whole["experiment"]
    assert ours == whole
    assert _compose(words) == _compose(words)  # what was composed before is not changed


@pytest.mark.parametrize("variant", ["paper", "gaussian"])
def test_a_method_s_paper_and_grid_are_no_settings(variant: str) -> None:
    assert not {"paper", "grid"} & load(["method=feddyn", f"variant={variant}"]).method.settings.keys()
    assert not any(key.startswith(("method.paper", "method.grid")) for key in known_keys())


@pytest.mark.parametrize("folder", ["runs/s30/method=fedavg,seed=1", "runs/a b", "runs/plain", "runs/{x}"])
def test_a_run_s_folder_can_be_given_back_whatever_it_is_called(folder: str) -> None:
    assert load([f"resume={folder}"]).resume == folder
    assert load([f"resume='{folder}'"]).resume == folder
    assert load(["resume=null"]).resume is None
