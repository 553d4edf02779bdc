"""What a site refuses of a run, what a run refuses of its sites, and how the others go on; all in this process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import client_app
from app.client import node_context
from app.common.code import code_hash
from app.common.errors import FedgeoError
from app.config.compose import load
from app.config.node_config import Refusal, Site, check_run, check_words
from app.data.site_dataset import local_config
from app.grids.cohort import CohortGrid
from app.grids.in_process import InProcessGrid
from app.launch.deployment import POLICY, LocalSite
from app.messages import Agreed
from tests.running import rounds, run_in_process
from tests.sites import audit, run_over_sites, told

SHORT = ("federation.rounds=2", "training.epochs=1")


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
