"""A site keeps its data to itself, tells the classes by name, and is left with what it is owed; all in this process."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import client_app
from app.client import node_context
from app.client.site_node import site_node
from app.common.code import code_hash
from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, Site, check_run, check_words
from app.data.images.folders import image_folder
from app.data.site_dataset import local_config, site_dataset
from app.grids.cohort import CohortGrid
from app.grids.in_process import InProcessGrid
from app.launch.deployment import POLICY, LocalSite
from app.messages import Agreed
from app.models.spdnet import SPDNet
from app.strategies.handshake import agree
from tests.running import rounds, run_in_process
from tests.sites import EEG, audit, digit_sites, eeg_sites, own_output, run_over_sites

SHORT = ("federation.rounds=2", "training.epochs=1")


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[LocalSite]:
    return digit_sites(tmp_path_factory.mktemp("dealt"))


@pytest.fixture
def sites(dealt: list[LocalSite], tmp_path: Path) -> list[LocalSite]:
    """The same data, with folders for state and output that no other test has written to."""
    return [LocalSite(site.name, site.data, tmp_path / site.name) for site in dealt]


class ToldSite(LocalSite):
    """A site whose node-config says more."""

    more: dict[str, str]

    @property
    def node_config(self) -> dict[str, str]:
        return super().node_config | self.more


def told(site: LocalSite, **more: str) -> LocalSite:
    changed = ToldSite(site.name, site.data, site.folder)
    object.__setattr__(changed, "more", {key.replace("_", "-"): value for key, value in more.items()})
    return changed


def site_of(site: LocalSite) -> Site:
    found = Site.of(site.node_config)
    assert found is not None
    return found


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


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "node-config has no name"),
        ({"data-path": "relative/data"}, "data-path=relative/data must be an absolute path"),
        ({"state-path": "/data/x/state"}, "must lie outside of data-path"),
        ({"name": "../up"}, "name='../up' must be"),
        ({"colour": "red"}, "unknown colour; allowed are"),
        ({"split-seed": "-1"}, "split-seed=-1 must be a whole number"),
        ({"test-fraction": "1.2"}, "test-fraction=1.2 must be a share from 0 to below 1"),
    ],
)
def test_faults_of_a_node_config_name_the_key(changes: dict[str, str], message: str) -> None:
    whole = {"name": "a", "data-path": "/data/x", "state-path": "/state", "output-path": "/output"}
    with pytest.raises(FedgeoError, match=message):
        Site.of(whole | changes)


def test_a_simulated_node_is_no_site() -> None:
    assert Site.of({"partition-id": 0, "num-partitions": 3}) is None
    whole = {"name": "a", "data-path": "/data/x", "state-path": "/state", "output-path": "/output"}
    found = Site.of(whole | {"partition-id": 0, "num-partitions": 3})
    assert found is not None and found.domain == "a"


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        ("../../etc", ""),
        ("quickstart", "experiment=../../../elsewhere/evil"),
        ("quickstart", "data=/etc/evil"),
        ("quickstart", "'seed=${oc.env:HOME}'"),
        ("quickstart", "hydra.searchpath=[file:///tmp]"),
        ("quickstart", "+method@data=../x"),
    ],
)
def test_a_run_cannot_make_a_site_compose_other_files(experiment: str, overrides: str) -> None:
    with pytest.raises(Refusal):
        check_words(experiment, overrides)


def test_ordinary_words_are_accepted() -> None:
    check_words("eeg_folder", "seed=3 'data.events={left: T1, right: T2}' run_dir='/a b/c' method=scaffold")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine=inprocess", "engine=inprocess"),
        ("method.target=os.path:join", "method.target=os.path:join"),
        ("+encoder.checkpoint=/etc/passwd", "encoder.checkpoint"),
        ("+encoder.pretrained=/etc/passwd", "encoder.pretrained"),
    ],
)
def test_a_run_cannot_name_files_or_code_of_its_own(override: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        check_run(load(["engine=deployment", override]))


def test_a_site_takes_no_part_in_a_simulation_nor_a_simulated_node_in_a_deployment(
    sites: list[LocalSite], tmp_path: Path
) -> None:
    with pytest.raises(FedgeoError, match="encoder.checkpoint: a site reads the file"):
        run_over_sites(tmp_path / "a", sites, *SHORT, "+encoder.checkpoint=/etc/passwd", "federation.deadline=1")
    with pytest.raises(FedgeoError, match="a node did not tell a site's name"):
        run_in_process(tmp_path / "b", "engine=deployment", "federation.deadline=1", nodes=2)


def test_errors_tell_the_server_nothing_of_the_data(sites: list[LocalSite], tmp_path: Path) -> None:
    broken = LocalSite("site-2", tmp_path / "broken", sites[1].folder)
    shutil.copytree(sites[1].data, broken.data)
    victim = next(broken.data.rglob("*.png"))
    victim.write_bytes(b"no image")
    with pytest.raises(FedgeoError) as failure:
        run_over_sites(tmp_path / "run", [sites[0], broken, sites[2]], *SHORT)
    assert "client 1 (site-2): site site-2 cannot do this (FedgeoError)" in str(failure.value)
    assert victim.name not in str(failure.value) + (broken.output / "audit.jsonl").read_text()
    assert victim.name in (broken.output / "log.txt").read_text()


def test_nothing_is_shared_where_the_codes_differ(sites: list[LocalSite], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(node_context, "code_hash", lambda: "f" * 64)
    with pytest.raises(FedgeoError, match="0 of federation.min_nodes=2 sites.*install the same version"):
        run_over_sites(tmp_path / "run", sites, *SHORT, "federation.deadline=1")
    for site in sites:
        (line,) = audit(site)
        assert (line["message"], line["bytes"]) == ("query.place", 0) and "error" in line


def test_a_site_that_agreed_to_other_code_is_left_out(sites: list[LocalSite], tmp_path: Path) -> None:
    pinned = [told(sites[0], code="0" * 64), *sites[1:]]
    run_over_sites(tmp_path / "run", pinned, *SHORT)
    partition = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert [site["site"] for site in partition["sites"]] == ["site-2", "site-3"]
    assert [line["message"] for line in audit(pinned[0])] == ["query.place"]


def test_nodes_of_one_name_are_left_out_and_the_others_go_on(
    sites: list[LocalSite], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Which of them is the site nobody can tell: neither is heard, whoever came first."""
    impostor = told(LocalSite("site-9", sites[1].data, tmp_path / "site-9"), name="site-1")
    run_over_sites(tmp_path / "run", [*sites, impostor], *SHORT)
    partition = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert [site["site"] for site in partition["sites"]] == ["site-2", "site-3"]
    assert [line["clients"] for line in rounds(tmp_path / "run")] == [2, 2]
    assert caplog.text.count("a node is left out: more than one node calls itself site-1") == 2
    for twin in (sites[0], impostor):
        assert [line["message"] for line in audit(twin)] == ["query.place"]


def test_too_few_sites_beside_nodes_of_one_name_end_the_run(sites: list[LocalSite], tmp_path: Path) -> None:
    twins = [sites[0], told(sites[1], name="site-1"), sites[2]]
    with pytest.raises(FedgeoError, match="1 of federation.min_nodes=2 .* more than one node calls itself site-1"):
        run_over_sites(tmp_path / "run", twins, *SHORT, "federation.deadline=1")


def test_a_name_that_two_nodes_took_is_nobodys_later_either(sites: list[LocalSite]) -> None:
    """A third node of that name, which connects while the run waits for more sites."""
    given = [*sites[:1], told(sites[1], name="site-1"), sites[2], told(sites[0], name="site-1"), sites[1]]
    inner = InProcessGrid(
        client_app.app,
        {"experiment": "quickstart", "overrides": "engine=deployment"},
        sites=[site.node_config for site in given],
    )
    late = {node: inner.contexts.pop(node) for node in list(inner.contexts)[3:]}
    grid = CohortGrid(inner)

    def connect() -> list[int]:
        found = list(inner.contexts)
        inner.contexts.update(late)  # whoever asks again finds them
        return found

    inner.get_node_ids = connect  # type: ignore[method-assign]
    grid.gather(Agreed("0" * 16, code_hash()), least=2, deadline=60)
    assert list(grid.names.values()) == ["site-2", "site-3"]


def test_a_site_whose_data_fail_takes_no_further_part(sites: list[LocalSite], tmp_path: Path) -> None:
    """The others go on as clients 0 and 2, with shapes and domains under their own numbers."""
    gone = LocalSite("site-2", tmp_path / "nowhere", sites[1].folder)
    words = ("federation.max_failures=0.4", "augmentation.step2=false")
    summary = run_over_sites(tmp_path / "run", [sites[0], gone, sites[2]], *SHORT, *words)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [(line["clients"], line["failures"]) for line in lines] == [(2, 0), (2, 0)]
    assert summary["by_domain"].keys() == {"site-1", "site-3"}


def test_a_site_without_data_is_named_and_the_others_may_go_on(sites: list[LocalSite], tmp_path: Path) -> None:
    """The run says who failed; why is told at the site alone. Where max_failures allows it, the others go on."""
    empty = LocalSite("site-3", tmp_path / "empty", tmp_path / "site-3")
    empty.data.mkdir()
    given = [sites[0], sites[1], empty]
    with pytest.raises(FedgeoError, match=r"client 2 \(site-3\): site site-3 cannot do this"):
        run_over_sites(tmp_path / "refused", given, *SHORT)
    assert "empty: holds no class folders" in (empty.output / "log.txt").read_text()
    summary = run_over_sites(tmp_path / "run", given, *SHORT, "federation.max_failures=0.34")
    assert summary["status"] == "completed" and summary["by_domain"].keys() == {"site-1", "site-2"}


def test_the_stricter_of_the_runs_and_the_sites_policy_holds(sites: list[LocalSite], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"min_count: 60\n{POLICY.read_text()}")
    strict = [told(sites[0], policy=str(policy)), *sites[1:]]
    run_over_sites(tmp_path / "run", strict, *SHORT, "privacy=research")
    shared = [next(x for x in audit(site) if x["message"] == "query.stats")["classes"] for site in strict]
    assert shared[0] and min(shared[0].values()) >= 60
    assert 10 <= min(min(counts.values()) for counts in shared[1:]) < 60


def test_a_site_reads_its_own_encoder_checkpoint(sites: list[LocalSite]) -> None:
    site = Site.of(sites[0].node_config | {"encoder-checkpoint": "/weights/clip.pt"})
    assert site is not None
    local = local_config(load(["engine=deployment", "encoder=open_clip"]), site)
    assert local.encoder.settings["checkpoint"] == "/weights/clip.pt"
