"""Zero-shot and FedCLIP: the text classifier, the adapter, and both over the grid with a tiny CLIP."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.encoders.text_classifier import text_classifier
from app.launch.job import plan
from app.models.clip_adapter import Adapter
from tests import tiny_clip
from tests.running import rounds, run_in_process

TEMPLATES = ["a photo of a {}.", "the {}"]


@pytest.fixture(scope="module", autouse=True)
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny_clip.register(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The digits through the tiny CLIP's image tower; their embeddings are kept between the tests."""
    return (
        *("encoder=open_clip", f"encoder.model={tiny_clip.NAME}", "encoder.pretrained=null"),
        *(f"cache_dir={tmp_path_factory.mktemp('cache')}", "federation.rounds=2", "augmentation=none"),
    )


# --- the text classifier


def test_rows_are_the_mean_unit_embeddings_of_the_sentences_times_the_temperature() -> None:
    import open_clip

    found = text_classifier(["red_car", "dog"], TEMPLATES, tiny_clip.NAME)
    torch.default_generator.manual_seed(0)
    clip, _, _ = open_clip.create_model_and_transforms(tiny_clip.NAME, pretrained=None)
    clip.eval()
    tokens = open_clip.get_tokenizer(tiny_clip.NAME)
    for row, name in enumerate(("red car", "dog")):
        with torch.no_grad():
            encoded = clip.encode_text(tokens([f"a photo of a {name}.", f"the {name}"]))
        unit = (encoded / encoded.norm(dim=1, keepdim=True)).mean(0)
        expected = clip.logit_scale.exp() * unit / unit.norm()
        assert torch.allclose(found[row], expected.detach(), atol=1e-5)
    assert found.shape == (2, tiny_clip.DIMENSION)
    assert torch.allclose(found.norm(dim=1), torch.full((2,), 1 / 0.07), rtol=1e-4)


def test_a_checkpoint_s_text_tower_is_used(tmp_path: Path) -> None:
    import open_clip

    torch.manual_seed(7)
    clip, _, _ = open_clip.create_model_and_transforms(tiny_clip.NAME, pretrained=None)
    file = tmp_path / "weights.pt"
    torch.save(clip.state_dict(), file)
    found = text_classifier(["dog"], ["{}"], tiny_clip.NAME, None, file)
    clip.eval()
    with torch.no_grad():
        expected = clip.encode_text(open_clip.get_tokenizer(tiny_clip.NAME)(["dog"]), normalize=True)
    assert torch.allclose(found, clip.logit_scale.exp() * expected, atol=1e-5)
    assert not torch.allclose(found, text_classifier(["dog"], ["{}"], tiny_clip.NAME))


@pytest.mark.parametrize("templates", [[], ["a photo"], ["{} and {}"]])
def test_a_template_holds_the_name_once(templates: list[str]) -> None:
    with pytest.raises(FedgeoError, match=r"method\.templates"):
        text_classifier(["dog"], templates, tiny_clip.NAME)


# --- the adapter


def test_the_adapter_is_its_formula_by_hand() -> None:
    model = Adapter(5, 3)
    model.reset(torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(2)
    weights = model.export() | {"text": torch.randn(3, 5, generator=g)}
    model.load(weights)
    x = torch.randn(4, 5, generator=g)
    inner = np.tanh(x.numpy() @ weights["first.weight"].numpy().T + weights["first.bias"].numpy())
    raised = np.exp(inner @ weights["second.weight"].numpy().T + weights["second.bias"].numpy())
    attended = raised / raised.sum(1, keepdims=True) * x.numpy()
    unit = attended / np.linalg.norm(attended, axis=1, keepdims=True)
    out = model(x)
    assert np.allclose(out.representation.detach(), unit, atol=1e-6)
    assert np.allclose(out.logits.detach(), unit @ weights["text"].numpy().T, atol=1e-5)


def test_the_text_classifier_is_exchanged_but_is_no_parameter() -> None:
    model = Adapter(5, 3)
    assert {"first.weight", "text"} <= model.export().keys()
    assert "text" not in dict(model.named_parameters())
    whole = model.export()
    for broken, error in (
        ({k: v for k, v in whole.items() if k != "text"}, KeyError),
        ({**whole, "text": torch.zeros(2, 5)}, ValueError),
        ({**whole, "more": torch.zeros(1)}, KeyError),
    ):
        with pytest.raises(error):
            model.load(broken)


# --- over the grid


def test_zero_shot_is_one_evaluation_of_the_text_classifier(tmp_path: Path, options: tuple[str, ...]) -> None:
    words = (*options, "method=zeroshot")
    summary = run_in_process(tmp_path / "run", *words, nodes=2)
    (line,) = rounds(tmp_path / "run")
    assert (summary["status"], line["clients"], line["train_loss"], line["bytes_up"]) == ("completed", 0, None, 0)
    dataset = image_dataset(load(" ".join(words)))
    rows = text_classifier(dataset.classes, ["a photo of a {}."], tiny_clip.NAME).numpy()
    test = dataset.held_out("test", None)
    assert line["accuracy"] == pytest.approx(np.mean((test.x @ rows.T).argmax(1) == test.y))
    assert np.allclose(load_file(tmp_path / "run" / "model-final.safetensors")["linear.weight"], rows)


def test_the_sentences_change_the_zero_shot_classifier(tmp_path: Path, options: tuple[str, ...]) -> None:
    run_in_process(tmp_path / "run", *options, "method=zeroshot", '\'method.templates=["the digit {}","{}"]\'')
    found = load_file(tmp_path / "run" / "model-final.safetensors")["linear.weight"]
    digits = [str(d) for d in range(10)]
    assert torch.allclose(found, text_classifier(digits, ["the digit {}", "{}"], tiny_clip.NAME))


def test_fedclip_trains_the_adapter_and_leaves_the_text_classifier(tmp_path: Path, options: tuple[str, ...]) -> None:
    words = (*options, "method=fedclip", "training.weight_decay=0.1", "training.epochs=2")
    summary = run_in_process(tmp_path / "one", *words)
    run_in_process(tmp_path / "three", *words, nodes=3)
    assert rounds(tmp_path / "one") == rounds(tmp_path / "three")
    losses = [line["train_loss"] for line in rounds(tmp_path / "one")]
    assert losses[1] < losses[0]
    found = load_file(tmp_path / "one" / "model-final.safetensors")
    digits = [str(d) for d in range(10)]
    assert torch.equal(found["text"], text_classifier(digits, ["a photo of a {}."], tiny_clip.NAME))
    d = tiny_clip.DIMENSION
    assert summary["parameters"] == 2 * (d * d + d) + 10 * d


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("method=zeroshot", "method=zeroshot needs CLIP's text tower: choose encoder=open_clip"),
        ("method=fedclip encoder=timm", "method=fedclip needs CLIP's text tower: .* encoder=timm has none"),
        ("method=zeroshot encoder=open_clip model.hidden=8", "set model.hidden=0"),
        ("method=fedclip encoder=open_clip model=linear", "choose that, not model=linear"),
        ("method=fedavg encoder=open_clip model=clip_adapter", "model=clip_adapter is for method=fedclip"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(words: str, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        plan(words.split())


def test_embeddings_of_another_model_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "other.npz"
    np.savez(file, one_X=rng.normal(size=(60, 7)).astype(np.float32), one_y=np.arange(60) % 3)
    words = (f"encoder.model={tiny_clip.NAME}", "encoder.pretrained=null", "federation.partition=iid")
    with pytest.raises(FedgeoError, match="text embeddings have dimension 24, the embeddings of data=features have 7"):
        run_in_process(
            tmp_path / "run", "data=features", f"data.path={file}", "encoder=open_clip", *words, "method=zeroshot"
        )
