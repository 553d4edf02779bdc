"""Masked sums in whole runs: the same model as without, and nothing of a single client at the server."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from app import messages
from app.client.masks import MASKS, Masks
from app.common.errors import FedgeoError
from app.config.node_config import Refusal
from app.grids.cohort import CohortGrid
from app.launch.deployment import LocalSite
from app.masking.roster import Roster
from app.tools.site_check import check_site
from tests.running import rounds, run_in_process
from tests.sites import audit, digit_sites, run_over_sites

DIGITS = ("federation.clients=4", "federation.rounds=2", "training.epochs=1")
EEG = (
    *("experiment=eeg_demo", "engine=inprocess", "federation.rounds=2", "training.epochs=1", "method=projavg"),
)  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("method=lda",),
        ("method=ridge",),
        ("method=fedavg", "augmentation=none"),
        ("method=fedopt", "augmentation=repeat", "augmentation.target=30", "model.init=zeros"),
        ("method=fedavg", "augmentation=ggeur", "augmentation.target=30", "model.init=lda"),
        EEG,
    ],
    ids=lambda words: words[0] if len(words) < 5 else words[-1],
)
def test_the_model_is_that_of_plain_numbers(tmp_path: Path, words: tuple[str, ...]) -> None:
    words = words if words == EEG else (*DIGITS, *words)
    plain = run_in_process(tmp_path / "plain", *words)
    masked = run_in_process(tmp_path / "masked", *words, "privacy.masked=true")
    assert (plain["masked"], masked["masked"]) == (False, True)
    for path in (tmp_path / "plain").glob("model-*.safetensors"):
        before, after = load_file(path), load_file(tmp_path / "masked" / path.name)
        for name, value in before.items():
            assert np.allclose(after[name], value, rtol=0, atol=2e-6 * max(1.0, float(np.abs(value).max()))), name
    for before, after in zip(rounds(tmp_path / "plain"), rounds(tmp_path / "masked"), strict=True):
        assert after["train_loss"] == (
            None if before["train_loss"] is None else pytest.approx(before["train_loss"], 1e-5)
        )


def test_the_server_is_sent_nothing_but_masked_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of statistics and updates: one array of uint64, uniform, and no figure beside it."""
    seen: list[tuple[str, dict[str, Any]]] = []
    inner = CohortGrid._judge  # what each client's part is judged by

    def judge(self: CohortGrid, request: Any, part: Any, parts: Any, errors: Any) -> None:
        if request.metadata.message_type in (messages.STATISTICS, messages.TRAIN):
            seen.append((request.metadata.message_type, {key: dict(record) for key, record in part.items()}))
        inner(self, request, part, parts, errors)

    monkeypatch.setattr(CohortGrid, "_judge", judge)
    run_in_process(tmp_path / "run", *DIGITS, "augmentation=ggeur", "augmentation.target=20", "privacy.masked=true")
    assert {kind for kind, _ in seen} == {messages.STATISTICS, messages.TRAIN}
    for _, part in seen:
        assert list(part) == [messages.ARRAYS] and list(part[messages.ARRAYS]) == ["masked"]
        words = part[messages.ARRAYS]["masked"].numpy()
        assert words.dtype == np.uint64
        assert abs(np.unpackbits(words.view(np.uint8)).mean() - 0.5) < 5 * 0.5 / np.sqrt(64 * len(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("method=scaffold",), "method=scaffold needs each client's own answers"),
        (("method=geometric_median",), "method=geometric_median needs each client's own answers"),
        (("method=krum",), "method=krum needs each client's own answers"),
        (("method=means_only",), "choose method=lda or ridge"),
        (("method=local", "augmentation=none"), "method=local needs each client's own answers"),
        (("augmentation=shift",), "augmentation=shift with these settings needs each client's own statistics"),
        (("augmentation=ggeur", "augmentation.step2=true"), "choose augmentation=ggeur with step2=false"),
        (("augmentation=ggeur", "augmentation.covariance=within"), "covariance=total"),
        (("federation.participation=2",), "set federation.participation=all"),
        (("federation.max_failures=0.5",), "set federation.max_failures=0"),
        (("federation.max_weight=3",), "set federation.max_weight=auto"),
        (("method=lda", "federation.robust=median"), "set federation.robust=none"),
        (("method=lda", "federation.clients=2"), "3 must take part"),
        (("experiment=eeg_demo", "engine=inprocess", "method=tangent_lr"), "needs each client's own answers"),
    ],
)
def test_what_a_sum_cannot_give_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(FedgeoError, match=said.replace("(", r"\(")):
        run_in_process(tmp_path / "run", *DIGITS, *words, "privacy.masked=true")


# --- sites ---


@dataclasses.dataclass(frozen=True)
class Masking(LocalSite):
    """A site with a policy file of its own."""

    @property
    def node_config(self) -> dict[str, str]:
        return super().node_config | {"policy": str(self.folder / "policy.yaml")}

    def write(self, **keys: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in (keys | {"encoders": ["pixels"]}).items()]
        (self.folder / "policy.yaml").write_text("".join(lines))


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[LocalSite]:
    return digit_sites(tmp_path_factory.mktemp("dealt"), 4)


@pytest.fixture
def sites(dealt: list[LocalSite], tmp_path: Path) -> Iterator[list[Masking]]:
    """Four sites that know each other's keys."""
    found = [Masking(site.name, site.data, tmp_path / site.name) for site in dealt]
    keys = {site.name: own_masks(site).public(0) for site in found}
    for site in found:
        site.write(masked=True, peers={name: key for name, key in keys.items() if name != site.name})
    yield found


def own_masks(site: LocalSite) -> Masks:
    return Masks(site.folder / "state" / MASKS, peers={})


RUN = ("federation.min_nodes=3", "federation.rounds=2", "training.epochs=1", "privacy.masked=true")


def test_sites_send_masked_sums(sites: list[Masking], tmp_path: Path) -> None:
    words = (*RUN[:-1], "augmentation=ggeur", "augmentation.target=50", "model.init=zeros")
    summary = run_over_sites(tmp_path / "run", sites[:3], *words, "privacy.masked=true")
    assert (summary["status"], summary["masked"], len(rounds(tmp_path / "run"))) == ("completed", True, 2)
    for site in sites[:3]:
        told = [line for line in audit(site) if line["message"] in (messages.STATISTICS, messages.TRAIN)]
        assert len(told) == 3
        assert all(list(line["arrays"]) == ["masked"] and line["arrays"]["masked"][0] == "uint64" for line in told)
    again = run_over_sites(tmp_path / "again", sites[:3], *words, "privacy.masked=true")
    assert again["f1_macro"] == summary["f1_macro"]  # another run, other masks, the same sums


def test_a_second_roster_over_the_same_data_is_refused(sites: list[Masking], tmp_path: Path) -> None:
    """The difference of two sums would be what the fourth site has."""
    run_over_sites(tmp_path / "three", sites[:3], *RUN, "method=lda")
    with pytest.raises(FedgeoError, match="has released masked covariances statistics of this set with sites="):
        run_over_sites(tmp_path / "four", sites, *RUN, "method=lda")


def test_a_key_that_was_exchanged_on_the_way_is_refused(sites: list[Masking], tmp_path: Path) -> None:
    keys = {site.name: own_masks(site).public(0) for site in sites}
    sites[0].write(masked=True, peers=keys | {"site-2": "ab" * 32})
    with pytest.raises(FedgeoError, match="site site-2 has another public key there"):
        run_over_sites(tmp_path / "run", sites[:3], *RUN, "method=lda")
    sites[0].write(masked=True)
    with pytest.raises(FedgeoError, match="site site-2 is not among them"):
        run_over_sites(tmp_path / "again", sites[:3], *RUN, "method=lda")


def test_a_run_cannot_say_who_the_peers_are(sites: list[Masking], tmp_path: Path) -> None:
    sites[0].write(masked=True)
    named = ",".join(f"site-{number}: {own_masks(site).public(0)}" for number, site in enumerate(sites, 1))
    with pytest.raises(FedgeoError, match="is not among them"):
        run_over_sites(tmp_path / "run", sites[:3], *RUN, "method=lda", f"privacy.peers={{{named}}}")


def test_a_site_that_masks_answers_no_run_that_does_not(sites: list[Masking], tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match=r"set privacy\.masked=true in the run"):
        run_over_sites(tmp_path / "run", sites[:3], *RUN[:-1], "method=lda")


def test_a_site_that_is_lost_ends_the_phase(sites: list[Masking], tmp_path: Path) -> None:
    sites[2].write(masked=True, peers={})
    with pytest.raises(FedgeoError, match=r"query\.stats: 1 of 3 clients failed"):
        run_over_sites(tmp_path / "run", sites[:3], *RUN, "method=lda")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_masks_are_not_used_twice(tmp_path: Path) -> None:
    masks = [Masks(tmp_path / str(client)) for client in range(3)]
    keys = {client: bytes.fromhex(own.public(client)) for client, own in enumerate(masks)}
    roster = Roster("0" * 16, dict.fromkeys(keys, ""), keys, (0, 1))
    sums = np.arange(5.0)
    first = masks[0].masked(0, roster, "train", 1, sums, 30)
    assert np.array_equal(masks[0].masked(0, roster, "train", 1, sums, 30), first)  # asked again: the same words
    with pytest.raises(Refusal, match="not used again"):
        masks[0].masked(0, roster, "train", 1, sums + 1, 30)
    assert not np.array_equal(masks[0].masked(0, roster, "train", 2, sums, 30), first)


def test_check_site_shows_the_key(sites: list[Masking]) -> None:
    folder = sites[0].folder
    (folder / "site.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in sites[0].node_config.items()))
    found = check_site(folder / "site.toml", ("experiment=quickstart",))
    assert found.details["public key for masked sums"] == own_masks(sites[0]).public(0)
