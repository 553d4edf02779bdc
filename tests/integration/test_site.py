"""A site keeps its data to itself, tells the classes by name, and is left with what it is owed; all in this process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from app.client.site_node import site_node
from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal
from app.data.images.folders import image_folder
from app.data.site_dataset import site_dataset
from app.launch.deployment import LocalSite
from app.models.spdnet import SPDNet
from app.strategies.handshake import agree
from tests.running import rounds
from tests.sites import EEG, audit, eeg_sites, own_output, run_over_sites, site_of

SHORT = ("federation.rounds=2", "training.epochs=1")


# --- a whole run ---


@pytest.fixture(scope="module")
def ran(dealt: list[LocalSite], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run directory, the sites and the summary of one run."""
    folder = tmp_path_factory.mktemp("ran")
    fresh = [LocalSite(site.name, site.data, folder / site.name) for site in dealt]
    return folder / "run", fresh, run_over_sites(folder / "run", fresh, *SHORT)


def test_every_site_is_left_with_the_model_its_configuration_and_its_scores(ran: Any) -> None:
    run_dir, sites, summary = ran
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    for site in sites:
        folder = own_output(site)
        assert (folder / "model-final.safetensors").read_bytes() == (run_dir / "model-final.safetensors").read_bytes()
        assert "engine: deployment" in (folder / "config.yaml").read_text()
        scores = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
        assert [line["round"] for line in scores] == [1, 2]
        for line, own in zip(lines, scores, strict=True):
            told = np.array(own["test"]["told"])
            assert line["accuracy_by_domain"][site.name] == pytest.approx(np.trace(told) / told.sum())
            assert set(told.sum(1) % 10) == {0} and told.sum() < own["test"]["samples"]
            assert (told.sum(1) <= np.sum(own["test"]["confusion"], axis=1)).all()
    assert summary["status"] == "completed"


def test_the_audit_log_has_every_message_and_every_byte(ran: Any) -> None:
    _, sites, summary = ran
    logs = [audit(site) for site in sites]
    kinds = ["query.place", "query.hello", "query.stats", "train.geometry", *["train", "evaluate"] * 2, "query.final"]
    assert all([line["message"] for line in log] == kinds for log in logs)
    assert sum(line["bytes"] for log in logs for line in log) == summary["bytes_up"]
    assert len({line["run"] for log in logs for line in log}) == 1


def test_the_audit_log_names_the_classes_and_counts_that_were_shared(ran: Any) -> None:
    _, sites, _ = ran
    for site in sites:
        line = next(line for line in audit(site) if line["message"] == "query.stats")
        held = {folder.name: len(list(folder.iterdir())) for folder in site.data.iterdir()}
        assert line["classes"].keys() == {name for name, n in held.items() if line["classes"].get(name)}
        assert all(10 <= count <= held[name] + 5 for name, count in line["classes"].items())


def test_a_round_tells_no_number_of_samples_but_in_tens(ran: Any) -> None:
    """A count of steps would be one of samples, where a run sets training.batch_size=1."""
    told = [line["numbers"] for site in ran[1] for line in audit(site) if line["message"] == "train"]
    assert len(told) == 6
    assert all(numbers.keys() == {"num-examples", "train_loss", "peak_memory_mb"} for numbers in told)
    assert all(numbers["num-examples"] % 10 == 0 for numbers in told)


def test_the_state_of_a_complete_run_is_gone_and_what_outlives_runs_stays(ran: Any) -> None:
    _, sites, _ = ran
    assert all({path.name for path in (site.folder / "state").iterdir()} == {"cache", "releases"} for site in sites)


def test_the_partition_tells_sites_and_rounded_counts_alone(ran: Any) -> None:
    partition = json.loads((ran[0] / "partition.json").read_text())
    assert [site["site"] for site in partition["sites"]] == ["site-1", "site-2", "site-3"]
    assert all(count % 10 == 0 for site in partition["sites"] for count in site["counts"])
    assert partition.keys() == {"classes", "sites"}


def test_eeg_sites_share_no_name_of_a_person_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SPDNet, "clamped_fraction", lambda *_: 1 / 3)  # exactly, it would tell the number of trials
    sites = eeg_sites(tmp_path)
    summary = run_over_sites(tmp_path / "run", sites, *EEG, "federation.rounds=1")
    assert summary["by_domain"].keys() == {"site-1", "site-2", "site-3"}
    sent = "".join((site.output / "audit.jsonl").read_text() for site in sites)
    kept = "".join(path.read_text() for path in (tmp_path / "run").glob("*.json*"))
    assert "patient" not in sent + kept and ".fif" not in sent + kept
    trained = [line["numbers"] for site in sites for line in audit(site) if line["message"] == "train"]
    assert [numbers["clamped_fraction"] for numbers in trained] == [0.33] * 3
    assert all((own_output(site) / "model-final.safetensors").exists() for site in sites)


def test_a_deployment_that_was_broken_off_goes_on_as_if_nothing_had_happened(
    sites: list[LocalSite], tmp_path: Path
) -> None:
    """SCAFFOLD's clients keep state, which each site has under its own state-path, by the run's name."""
    words = ("federation.rounds=3", "training.epochs=1", "method=scaffold", "federation.participation=2")
    run_over_sites(tmp_path / "whole", sites, *words)

    def power_cut(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    again = [LocalSite(site.name, site.data, tmp_path / "again" / site.name) for site in sites]
    with pytest.raises(KeyboardInterrupt):
        run_over_sites(tmp_path / "run", again, *words, on_round=power_cut)
    site_node.cache_clear()  # the next message is a new process
    run_over_sites(tmp_path / "run", again, *words, f"resume={tmp_path / 'run'}")
    assert rounds(tmp_path / "run") == rounds(tmp_path / "whole")
    models = [tmp_path / name / "model-final.safetensors" for name in ("whole", "run")]
    assert models[0].read_bytes() == models[1].read_bytes() == (own_output(again[0]) / models[0].name).read_bytes()


# --- whose data ---


def test_what_the_run_says_of_paths_is_not_read(sites: list[LocalSite], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    words = (f"data.path={elsewhere}", f"cache_dir={elsewhere}", f"federation.partition_file={elsewhere}/p.json")
    assert run_over_sites(tmp_path / "run", sites, *SHORT, *words)["status"] == "completed"
    assert not elsewhere.exists()


def test_labels_are_agreed_by_name(dealt: list[LocalSite]) -> None:
    config = load(["experiment=quickstart", "engine=deployment"])
    agreed = tuple(str(digit) for digit in (7, 1, 9, 0, 2, 3, 4, 5, 6, 8))
    dataset = site_dataset(config, site_of(dealt[0]), agreed)
    source = image_folder(dealt[0].data)
    parts = [dataset.train(3), dataset.held_out("val", 3), dataset.held_out("test", 3)]
    named = sorted(agreed[label] for part in parts for label in part.y)
    assert named == sorted(source.classes[label] for label in source.labels)
    own = site_dataset(config, site_of(dealt[0]))
    assert [own.classes[label] for label in own.train(0).y] == [agreed[label] for label in parts[0].y]
    np.testing.assert_array_equal(own.train(0).x, parts[0].x)


def test_a_class_that_the_run_does_not_know_is_refused(dealt: list[LocalSite]) -> None:
    with pytest.raises(Refusal, match="the run's classes lack"):
        site_dataset(load(["experiment=quickstart", "engine=deployment"]), site_of(dealt[0]), ("0", "1"))


def test_the_number_of_a_site_follows_its_name_not_the_order_of_connecting(
    sites: list[LocalSite], tmp_path: Path
) -> None:
    run_over_sites(tmp_path / "a", sites, *SHORT)
    again = [LocalSite(site.name, site.data, tmp_path / "again" / site.name) for site in reversed(sites)]
    run_over_sites(tmp_path / "b", again, *SHORT)
    models = [load_file(tmp_path / name / "model-final.safetensors") for name in ("a", "b")]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_embeddings_and_images_do_not_mix(sites: list[LocalSite], tmp_path: Path) -> None:
    features = tmp_path / "features.npz"
    rng = np.random.default_rng(0)
    np.savez(features, site_X=rng.normal(size=(60, 64)).astype("f4"), site_y=np.repeat([0, 1], 30))
    mixed = [sites[0], LocalSite("site-9", features, tmp_path / "site-9")]
    with pytest.raises(FedgeoError, match="has encoder none: embeddings were made beforehand, client 0 .site-1"):
        run_over_sites(tmp_path / "run", mixed, *SHORT)


# --- agreeing on classes ---


def test_classes_are_the_union_in_the_order_of_names() -> None:
    assert agree({"a": ["cat", "dog"], "b": ["bird", "dog"]}, None) == ("bird", "cat", "dog")
    assert agree({"a": ["left", "arm"], "b": ["left", "arm"]}, None) == ("left", "arm")
    assert agree({"a": ["cat"], "b": ["dog"]}, ["dog", "cat", "cow"]) == ("dog", "cat", "cow")


@pytest.mark.parametrize(
    ("said", "wanted", "message"),
    [
        ({"a": ["cat"], "b": ["Cat", "dog"]}, None, "site b has class 'Cat', site a 'cat': they differ in capitals"),
        ({"a": ["cat"], "b": ["catt"]}, ["cat", "dog"], "site b has class 'catt', which is not in federation.classes"),
    ],
)
def test_classes_that_do_not_go_together_name_their_site(said: Any, wanted: Any, message: str) -> None:
    with pytest.raises(FedgeoError, match=message):
        agree(said, wanted)


# --- what deserves a look ---


def test_the_server_is_told_that_a_site_has_something_to_look_at_and_not_what(tmp_path: Path) -> None:
    """One of three sites has each image twice, so that some are trained and tested on."""
    rng = np.random.default_rng(0)
    sites = []
    for name in ("a", "b", "c"):
        for label, bright in (("day", 150), ("night", 0)):
            folder = tmp_path / name / "data" / label
            folder.mkdir(parents=True)
            for number in range(60):
                image = Image.fromarray(rng.integers(bright, bright + 100, (8, 8), np.uint8))
                image.save(folder / f"patient-{number}.png")
                if name == "b":
                    image.save(folder / f"patient-{number}-again.png")
        sites.append(LocalSite(name, tmp_path / name / "data", tmp_path / name))
    words = ("experiment=image_folder", "encoder=pixels", "encoder.size=8", "method=lda", "augmentation=none")
    summary = run_over_sites(tmp_path / "run", sites, *words)
    (told,) = [text for text in summary["warnings"] if "log.txt" in text]
    assert told.startswith("site b has data that may change what is learned") and "patient" not in told
    logs = {site.name: (site.output / "log.txt").read_text() for site in sites}
    assert "test images are also trained or validated on" in logs["b"] and "patient-" in logs["b"]
    assert "also trained" not in logs["a"] + logs["c"]
