"""FedSPDnet: sites, settings and recordings that are refused by name, and what of recordings can be handled."""

import shlex
from collections.abc import Callable
from pathlib import Path

import mne
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg.dataset import EegDataset
from scripts import run as script
from tests.eeg_files import CHANNELS, make_raw, save
from tests.eeg_runs import EEGNET, recorded, simulated
from tests.running import rounds, run_in_process


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("channels", [f"E{i}" for i in (2, 1, *range(3, 23))], "client 1 has channels E2 in place 1, client 0 has E1"),
        ("sampling rate", 160.0, "client 1 has sampling rate 160.0, client 0 has 128.0"),
        ("average reference", True, "client 1 has average reference True, client 0 has False"),
        ("filter", None, "client 1 has filter None, client 0 has [8.0, 32.0]"),
    ],
)
def test_sites_that_differ_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact: str, value: object, message: str
) -> None:
    real = EegDataset.facts
    monkeypatch.setattr(
        EegDataset, "facts", lambda self, client: real(self, client) | ({fact: value} if client == 1 else {})
    )
    with pytest.raises(FedgeoError) as caught:
        simulated(tmp_path / "run", nodes=2)
    assert message in str(caught.value)
    assert not rounds(tmp_path / "run")


UNFIT = [
    (("experiment=eeg_demo", "model=linear"), "model=linear reads embeddings, data=simulated_eeg is EEG"),
    (("method=projavg",), "method=projavg is made for model=spdnet"),
    (("method=rlavg",), "method=rlavg is made for model=spdnet"),
    (("experiment=eeg_demo", "method=projavg", "model=eegnet"), "method=projavg is made for model=spdnet"),
    (("method=mdm",), "method=mdm works on covariances of EEG trials, data=sklearn_digits are images"),
    (("method=tangent_lr",), "method=tangent_lr works on covariances of EEG trials"),
    (("model=spdnet", "augmentation=none"), "model=spdnet reads EEG trials, data=sklearn_digits are images"),
    (("experiment=eeg_demo", "method=scaffold"), "method=scaffold"),
    (("experiment=eeg_demo", "augmentation=ggeur"), "augmentation=ggeur is for image embeddings"),
    (("experiment=eeg_demo", "model.hidden=[40]"), "SPDnet widths [40]"),
    (("experiment=eeg_demo", "model.hidden=[8,12]"), "SPDnet widths [8, 12]"),
    (("experiment=eeg_demo", *EEGNET, "data.window=[0,0.24]"), "EEGNet pools (4, 8) leave nothing of 31 samples"),
    (("experiment=eeg_demo", "data.window=[0,0.1]"), "data.window: simulated trials need more than 27 samples"),
]


@pytest.mark.parametrize(("words", "message"), UNFIT)
def test_what_does_not_go_together_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    refused([*words, f"run_dir={tmp_path / 'run'}"], capsys, message)
    assert not (tmp_path / "run").exists()


def refused(words: list[str], capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """run.py must end with 2 and one line that holds all the parts."""
    assert script.main([*words, "engine=inprocess"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and said.out == ""
    for part in parts:
        assert part in said.err


def no_number(raw: mne.io.BaseRaw) -> None:
    raw._data[CHANNELS.index("C3"), 5000] = np.nan


def flat(raw: mne.io.BaseRaw) -> None:
    raw._data[CHANNELS.index("Oz")] = 3e-6


def volts(raw: mne.io.BaseRaw) -> None:
    raw._data *= 1e6


def no_channel(raw: mne.io.BaseRaw) -> None:
    raw.drop_channels(["C3"])


def no_event(raw: mne.io.BaseRaw) -> None:
    raw.set_annotations(None)


def other_classes(raw: mne.io.BaseRaw) -> None:
    raw.annotations.description[:] = "T7"


BAD: list[tuple[Callable[[mne.io.BaseRaw], None], tuple[str, ...]]] = [
    (no_number, ("channel C3 holds values that are not numbers",)),
    (flat, ("channel Oz is flat in 10 of 10 trials",)),
    (volts, ("expected 1 to 100", "data.scale by 1e-06")),
    (no_channel, ("no channel C3",)),
    (no_event, ("none of the annotations",)),
    (other_classes, ("none of the annotations", "T7")),
]


@pytest.mark.parametrize(("spoil", "parts"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_recording_is_refused_by_subject_file_and_channel(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[mne.io.BaseRaw], None],
    parts: tuple[str, ...],
) -> None:
    save(make_raw(seed=5), tmp_path / "data" / "good" / "x_raw.fif")
    raw = make_raw()
    spoil(raw)
    save(raw, tmp_path / "data" / "bad" / "x_raw.fif")
    refused(recorded(tmp_path / "data"), capsys, "subject bad", "bad/x_raw.fif", *parts)


def test_another_sampling_rate_and_a_truncated_file_are_refused_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(make_raw(seed=5), tmp_path / "data" / "good" / "x.edf")
    path = save(make_raw(rate=128.0), tmp_path / "data" / "slow" / "x.edf")
    refused(recorded(tmp_path / "data"), capsys, "subject slow", "slow/x.edf", "128 Hz", "160 Hz", "data.resample=128")
    path.write_bytes(path.read_bytes()[:20_000])
    refused(recorded(tmp_path / "data"), capsys, "subject slow", "slow/x.edf", f"copy {path} again")


def test_what_can_be_handled_is_and_is_reported(tmp_path: Path) -> None:
    """Another channel order, an average reference at one of two subjects, a subject without a class."""
    data = tmp_path / "data"
    save(make_raw(seed=5), data / "a" / "x_raw.fif")
    save(make_raw(channels=CHANNELS[::-1], labels=("T1",) * 10), data / "b" / "x_raw.fif")
    save(make_raw(seed=7).set_eeg_reference("average", verbose="ERROR"), data / "c" / "x_raw.fif")
    summary = run_in_process(tmp_path / "run", *map(shlex.quote, recorded(data)), "federation.subjects_per_client=3")
    assert summary["status"] == "completed"
    told = (tmp_path / "run" / "log.txt").read_text()
    assert "subject b: no trial of class right_hand" in told
    assert "subject c: c/x_raw.fif: average reference: covariances have rank 3 of 4" in told
