"""FedSPDnet's presets: what one without its data says to fetch, and what the printed settings come to."""

import socket
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from scripts import run as script
from tests.eeg_runs import EEGNET
from tests.running import rounds, run_in_process


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("preset", "parts"),
    [
        ("fedspdnet_physionetmi", ("PhysionetMI: subject 1 is not complete", "about 1.7 GB")),
        ("fedspdnet_weibo2014_half", ("Weibo2014: subject 1 is not complete", "about 2 GB")),
    ],
)
def test_a_preset_without_its_data_says_what_to_fetch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offline: None, preset: str, parts: tuple[str, ...]
) -> None:
    assert script.main([f"experiment={preset}", "engine=inprocess", f"data.path={tmp_path}"]) == 2
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    for part in (*parts, str(tmp_path)):
        assert part in line


def weibo(folder: Path, subject: int) -> None:
    """A file of Weibo2014's own form, of noise."""
    rng = np.random.default_rng(subject)
    data = 20 * rng.standard_normal((64, 1600, 28))
    (folder / "MNE-weibo-2014").mkdir(exist_ok=True)
    savemat(folder / "MNE-weibo-2014" / f"subject_{subject}.mat", {"data": data, "label": np.tile(range(1, 8), 4)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weibo2014_as_printed_has_the_papers_parameters(tmp_path: Path, offline: None) -> None:
    for subject in (1, 2):
        weibo(tmp_path, subject)
    words = ("experiment=fedspdnet_weibo2014", "variant=paper", "data.subjects=[1,2]", f"data.path={tmp_path}")
    words = (*words, "federation.rounds=1", "federation.subjects_per_client=1", f"cache_dir={tmp_path / 'cache'}")
    assert run_in_process(tmp_path / "spdnet", *words)["parameters"] == 4_715
    assert run_in_process(tmp_path / "eegnet", *words, *EEGNET)["parameters"] == 5_303


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_physionetmi_as_printed_runs_on_real_recordings(tmp_path: Path, test_data: Path, offline: None) -> None:
    below = Path("MNE-eegbci-data", "files", "eegmmidb", "1.0.0")
    for subject in ("S001", "S004", "S015", "S042"):
        (tmp_path / below / subject).mkdir(parents=True)
        for file in sorted((test_data / "eeg" / below / subject).glob("*.edf")):
            (tmp_path / below / subject / file.name).symlink_to(file.resolve())
    words = ("experiment=fedspdnet_physionetmi", "variant=paper", "data.subjects=[1,4,15,42]", f"data.path={tmp_path}")
    words = (*words, "federation.rounds=2", f"cache_dir={tmp_path / 'cache'}")
    summary = run_in_process(tmp_path / "spdnet", *words)
    assert (summary["parameters"], summary["variant"], summary["metric"]) == (2_452, "paper", "f1_macro")
    assert [line["clients"] for line in rounds(tmp_path / "spdnet")] == [2, 2]
    half = run_in_process(tmp_path / "half", *words, "federation.participation=0.5", "method=rlavg")
    assert [line["clients"] for line in rounds(tmp_path / "half")] == [1, 1] and half["method"] == "rlavg"
    assert run_in_process(tmp_path / "eegnet", *words, *EEGNET)["parameters"] == 3_284
