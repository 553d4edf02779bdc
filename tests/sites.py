"""Sites for tests: folders with data of their own, and runs over them in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import client_app
from app.config.compose import load
from app.config.node_config import Site
from app.grids.in_process import InProcessGrid
from app.launch.deployment import LocalSite
from app.launch.rehearsal import data_path, write_shares
from app.server.run import OnRound, run
from tests.eeg_files import EVENTS, make_raw, save_fif

EEG = (
    *("experiment=eeg_folder", f"data.events={{{', '.join(f'{k}: {v}' for k, v in EVENTS.items())}}}"),
    *("data.window=[0.0,1.5]", "model.hidden=[3]", "training.epochs=1", "training.batch_size=8"),
    "data.test_fraction=0.4",  # ten trials of each class, of which a site may tell
)


def digit_sites(folder: Path, number: int = 3) -> list[LocalSite]:
    """scikit-learn's digits, dealt by label skew."""
    folders = [folder / f"site-{index + 1}" for index in range(number)]
    write_shares(["experiment=quickstart"], [each / "data" for each in folders])
    return [LocalSite(each.name, data_path(each / "data"), each) for each in folders]


def eeg_sites(folder: Path, number: int = 3) -> list[LocalSite]:
    """Each with one subject's recordings of noise, ten trials a file and six files."""
    sites = []
    for index in range(number):
        home = folder / f"site-{index + 1}"
        for part in range(6):
            save_fif(make_raw(seed=10 * index + part), home / "data" / f"patient-{index}" / f"run-{part}.fif")
        sites.append(LocalSite(home.name, home / "data", home))
    return sites


def run_over_sites(
    run_dir: Path, sites: Sequence[LocalSite], *overrides: str, on_round: OnRound | None = None
) -> dict[str, Any]:
    """The summary of one run of a deployment whose sites are function calls."""
    words = " ".join([*(f"'{word}'" for word in overrides), "engine=deployment", f"run_dir={run_dir}"])
    told = {"experiment": "quickstart", "overrides": words}
    grid = InProcessGrid(client_app.app, told, sites=[site.node_config for site in sites])
    return run(grid, load(words), run_dir, on_round, overrides=words, state=run_dir / "state")


def audit(site: LocalSite) -> list[dict[str, Any]]:
    """The lines of a site's audit log."""
    return [json.loads(line) for line in (site.output / "audit.jsonl").read_text().splitlines()]


def own_output(site: LocalSite) -> Path:
    """The folder of the one run that a site has taken part in."""
    (folder,) = (path for path in site.output.iterdir() if path.is_dir())
    return folder


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
