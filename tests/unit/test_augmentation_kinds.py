"""The kinds of augmentation by name: one default wherever it is said, and every yaml names a class."""

import inspect
from dataclasses import fields

import pytest
import yaml
from flwr.serverapp.strategy import FedAvg

from app.augmentation.registry import find, load
from app.common.code import CONF
from app.common.errors import FedgeoError
from app.config.compose import load as load_config
from app.strategies.augmented import AugmentedStrategy
from app.strategies.ggeur import GGEUR
from app.strategies.shift import Shift

FOLDER = CONF / "augmentation"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_yaml_names_a_class_whose_defaults_are_the_configuration_s(name: str) -> None:
    chosen = load(load_config(["experiment=digits", f"augmentation={name}"]).augmentation)
    assert (chosen.name, type(chosen)) == (name, find(name))
    base = yaml.safe_load((FOLDER / "_base.yaml").read_text())
    assert {f.name: f.default for f in fields(chosen)} == {f.name: base[f.name] for f in fields(chosen)}


@pytest.mark.parametrize(("strategy", "name"), [(GGEUR, "ggeur"), (Shift, "shift")])
def test_a_strategy_takes_the_settings_of_its_augmentation(strategy: type[AugmentedStrategy], name: str) -> None:
    given = inspect.signature(strategy).parameters.values()
    defaults = {p.name: p.default for p in given if p.kind is p.KEYWORD_ONLY}
    assert defaults == {f.name: f.default for f in fields(find(name))}


def test_a_setting_out_of_range_is_refused_by_key() -> None:
    with pytest.raises(FedgeoError, match=r"^augmentation\.explained=2\.0: must be less than or equal to 1$"):
        GGEUR(FedAvg(), explained=2.0)


@pytest.mark.parametrize("kind", ["augmented_set", "base", "filling", "registry", "../config/schema", "nothing"])
def test_a_file_without_an_augmentation_is_no_kind(kind: str) -> None:
    with pytest.raises(FedgeoError, match="must be one of those in conf/augmentation"):
        find(kind)
