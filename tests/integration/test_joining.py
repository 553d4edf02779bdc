"""Does joining help: the phase after the last round, in process and at sites."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from app import messages
from app.client import joining
from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.experiment import experiment
from app.data.federated_dataset import Samples
from app.data.images.dataset import ImageDataset
from app.launch.deployment import LocalSite
from app.tools.predict import load_model
from tests.running import rounds, run_in_process
from tests.sites import audit, digit_sites, own_output, run_over_sites

OWN = ("federation.test=own", "federation.clients=4", "federation.rounds=2", "training.epochs=1")
KEPT = ("federation.validation=clients",)


def found(run_dir: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run_dir / "joining.json").read_text())
    return told


def test_every_client_is_scored_on_its_own_mix(tmp_path: Path) -> None:
    summary = run_in_process(tmp_path / "run", *OWN, "augmentation=none")
    sites = found(tmp_path / "run")["sites"]
    assert len(sites) == 4 and summary["personal"] is None
    tested = sum(each["tested"] for each in sites.values())
    for model in ("alone", "joined"):
        assert summary[model] == pytest.approx(sum(each["right"][model] for each in sites.values()) / tested)
    assert rounds(tmp_path / "run")[-1]["accuracy"] == pytest.approx(summary["joined"])  # the last round's, pooled
    verdicts = [each["less_alone"]["joined"]["verdict"] for each in sites.values()]
    assert (summary["sites_better"], summary["sites_worse"]) == (verdicts.count("better"), verdicts.count("worse"))
    assert summary["worst_site"] in sites
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Does joining help?" in page and "Accuracy of the joined model against alone" in page


@pytest.mark.parametrize("mode", ["prior", "finetune", "ensemble", "auto"])
def test_modes(tmp_path: Path, mode: str) -> None:
    summary = run_in_process(tmp_path / "run", *OWN, *KEPT, "augmentation=ggeur", f"personal={mode}")
    sites = found(tmp_path / "run")["sites"]
    assert 0.5 < summary["personal"] <= 1
    modes = {each["mode"] for each in sites.values()}
    assert modes == {mode} if mode != "auto" else modes <= {"alone", "joined", "prior", "finetune", "ensemble"}
    if mode == "prior":  # the first thing that skewed labels ask for
        assert summary["personal"] > summary["joined"]


@pytest.mark.parametrize("words", [("model=mlp", "augmentation=none"), ("method=ridge",), ("method=lda",)])
def test_models_and_one_round_heads(tmp_path: Path, words: tuple[str, ...]) -> None:
    summary = run_in_process(tmp_path / "run", *OWN, *KEPT, "personal=auto", *words)
    assert summary["status"] == "completed" and 0.5 < summary["personal"] <= 1


def test_eeg_clients_have_test_trials_of_their_own(tmp_path: Path) -> None:
    words = ("experiment=eeg_demo", "engine=inprocess", "federation.rounds=2", "training.epochs=1", "personal=auto")
    summary = run_in_process(tmp_path / "run", *words)
    modes = {each["mode"] for each in found(tmp_path / "run")["sites"].values()}
    assert summary["personal"] is not None and modes <= {"alone", "joined", "finetune"}


def test_the_choice_never_sees_test_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With test labels shuffled every client chooses the same, and its model is the same to the bit."""
    kept: list[dict[int, joining.Joining]] = []
    run = joining.Trial.run

    def keep(self: joining.Trial) -> joining.Joining:
        kept[-1][self.client] = run(self)
        return kept[-1][self.client]

    held_out = ImageDataset.held_out

    def shuffled(self: ImageDataset, part: str, client: int | None) -> Samples:
        samples = held_out(self, part, client)
        if part != "test":
            return samples
        return Samples(samples.x, np.random.default_rng(0).permutation(samples.y), samples.domain)

    monkeypatch.setattr(joining.Trial, "run", keep)
    for name in ("true", "shuffled"):
        kept.append({})
        if name == "shuffled":
            monkeypatch.setattr(ImageDataset, "held_out", shuffled)
        run_in_process(tmp_path / name, *OWN, *KEPT, "augmentation=none", "personal=auto")
    true, false = kept
    assert true.keys() == false.keys() == {0, 1, 2, 3}
    assert any((true[k].right["alone"] != false[k].right["alone"]).any() for k in true)
    for client, before in true.items():
        assert (before.mode, before.alone) == (false[client].mode, false[client].alone)
        assert all(value.equal(false[client].weights[name]) for name, value in before.weights.items())


def test_what_is_kept_back_is_in_no_phase_and_no_round() -> None:
    dataset = experiment(load(["engine=inprocess", *OWN, *KEPT])).dataset
    for client in range(4):
        trained = {row.tobytes() for row in dataset.train(client).x}
        for part in ("val", "test"):
            assert not trained & {row.tobytes() for row in dataset.held_out(part, client).x}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("personal=prior",), "set federation.test=own"),
        (("personal=auto", "federation.test=own"), "set federation.validation=clients"),
        (("federation.test=own", "method=local", "augmentation=none"), "method=local has no joined model"),
        (("federation.test=own", "method=centralised", "augmentation=none"), "method=centralised has no joined model"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(FedgeoError, match=said):
        run_in_process(tmp_path / "run", *words)


# --- sites ---


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[LocalSite]:
    return digit_sites(tmp_path_factory.mktemp("dealt"), 3)


def test_a_site_gets_its_answer_and_its_model(sites: list[LocalSite], tmp_path: Path) -> None:
    here = [LocalSite(site.name, site.data, tmp_path / site.name) for site in sites]
    words = ("federation.rounds=2", "training.epochs=1", "augmentation=none")
    summary = run_over_sites(tmp_path / "run", here, *words, "personal=auto")
    told = found(tmp_path / "run")["sites"]
    assert set(told) == {"site-1", "site-2", "site-3"} and summary["personal"] is not None
    for site in here:
        folder = own_output(site)
        exact = json.loads((folder / "joining.json").read_text())["here"]
        said = told[site.name]
        assert said["f1"] == {} and "difference" not in said["less_alone"]["personal"]
        for key in ("training", "tested"):
            assert said[key] == exact[key] // 10 * 10
        assert all(said["right"][model] == exact["right"][model] // 10 * 10 for model in exact["right"])
        page = (folder / "joining.html").read_text()
        assert f"On {exact['tested']:,} test samples of this site: alone" in page
        trained = load_model(folder / "model-personal.safetensors")
        assert len(trained.classes) == 10 and load_file(folder / "model-personal.safetensors").keys()
        (line,) = [line for line in audit(site) if line["message"] == messages.JOINING]
        assert line["words"]["json"] == said


def test_a_site_is_not_asked_by_a_run_that_does_not_say_so(sites: list[LocalSite], tmp_path: Path) -> None:
    here = [LocalSite(site.name, site.data, tmp_path / site.name) for site in sites]
    run_over_sites(tmp_path / "run", here, "federation.rounds=1", "training.epochs=1", "augmentation=none")
    assert not any(line["message"] == messages.JOINING for site in here for line in audit(site))
    assert not (tmp_path / "run" / "joining.json").exists()
