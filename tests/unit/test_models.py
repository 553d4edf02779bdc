"""The models by name: every yaml has its class and that class's defaults, and a wrong setting is refused by key."""

from dataclasses import MISSING, fields

import pytest
import torch
import yaml

from app.common.code import CONF
from app.common.errors import FedgeoError
from app.config import schema
from app.models.mlp import MLP
from app.models.registry import load

FOLDER = CONF / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.yaml"))
IMAGES = {"dimension": 6}
EEG = {"channels": 18, "samples": 64, "rate": 128.0}


@pytest.mark.parametrize("name", NAMES)
def test_a_yaml_names_a_model_whose_defaults_are_its_values(name: str) -> None:
    settings = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    del settings["defaults"]
    architecture = load(schema.Model(**settings))
    assert settings.pop("kind") == architecture.name == name
    defaults = {f.name: f.default_factory() if f.default is MISSING else f.default for f in fields(architecture)}
    assert defaults == settings
    model = architecture.build(IMAGES if architecture.family == "images" else EEG, 3)
    assert isinstance(model, architecture.model)
    x = model.blank_input()
    with torch.no_grad():
        assert model.eval()(x).logits.shape == (1, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "spdnet", "hidden": 8}, "model.hidden=8: must be a valid list"),
        ({"kind": "linear", "init": "ones"}, "model.init=ones: must be 'auto', 'zeros', 'lda' or 'ridge'"),
        ({"kind": "mlp", "width": 8}, "model.width: MLPArchitecture has no such parameter; it has hidden, dropout"),
        ({"kind": "weights"}, "model.kind=weights: must be one of those in conf/model"),
        (
            {"kind": "linear", "target": "app.models.linear:Head"},
            "model.target=app.models.linear:Head: must be a sub",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_key(settings: dict[str, object], message: str) -> None:
    with pytest.raises(FedgeoError) as caught:
        load(schema.Model(**settings))
    assert str(caught.value).startswith(message)


def test_dropout_leaves_out_its_share_in_training_only_and_follows_its_generator() -> None:
    model = MLP(6, 3, 400, dropout=0.25)
    model.reset(torch.Generator().manual_seed(0))
    x = torch.ones(1, 6)
    still = model.eval()(x).logits
    model.train()
    with pytest.raises(RuntimeError, match="model.generator"):
        model(x)

    def logits(seed: int) -> torch.Tensor:
        model.generator = torch.Generator().manual_seed(seed)
        return model(x).logits.detach()

    assert torch.equal(logits(1), logits(1)) and not torch.equal(logits(1), logits(2))
    mean = torch.stack([logits(seed) for seed in range(400)]).mean(0)
    assert torch.allclose(mean, still, atol=0.05)
    assert torch.equal(model.eval()(x).logits, still)
