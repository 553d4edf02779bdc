"""What an engineer is told of the site's data before joining, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import mne
import mne_bids
import numpy as np
import pytest
from PIL import Image

from app.geometry.class_statistics import gather
from app.launch.deployment import POLICY
from app.tools.site_check import check_site, statistics_bytes
from app.tools.site_findings import SiteFindings, words
from scripts import check_site as script
from scripts import deploy_local
from tests.eeg_files import EVENTS, make_raw, save_fif

QUICK = ("experiment=quickstart",)
RUN = ("experiment=eeg_folder", f"data.events={{{', '.join(f'{k}: {v}' for k, v in EVENTS.items())}}}",
       "data.window=[0.0,1.5]", "model.hidden=[3]")  # fmt: skip


def images(folder: Path, counts: dict[str, int]) -> Path:
    rng = np.random.default_rng(0)
    for name, number in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(number):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(folder / name / f"{index}.png")
    return folder


def recordings(folder: Path, scale: float = 1.0, **settings: Any) -> Path:
    for part in range(4):
        raw = make_raw(seed=part, **settings)
        raw.apply_function(lambda row: row * scale)
        save_fif(raw, folder / "patient" / f"run-{part}.fif")
    return folder


def test_readable_images_can_join(tmp_path: Path) -> None:
    found = check_site(images(tmp_path / "data", {"cat": 40, "dog": 20, "cow": 4}), QUICK, POLICY)
    assert (found.ok, found.kind) == (True, "images")
    assert found.classes == {"cat": 40, "cow": 4, "dog": 20}
    assert found.training["cat"] == 28 and found.shared == {"cat": 20, "dog": 10}
    assert found.warnings == [
        "fewer than 10 training samples, so the class is left out: cow",
        "fewer than 10 test samples, so the class is not scored here: cat, dog",
        "no class has privacy.min_total=50 samples here: unless other sites hold the rest of one, the run ends before "
        "anything is shared",
    ]
    assert found.details["dimension"] == 64


def test_the_bytes_are_those_of_the_statistics(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for counts, p in (([20, 12], 64), ([100, 40], 16), ([33, 31, 32], 64)):
        x, y = rng.normal(size=(sum(counts), p)), np.repeat(np.arange(len(counts)), counts)
        for precision in ("float32", "float64"):
            sent = sum(array.nbytes for array in gather(x, y).to_arrays(precision).values())
            assert statistics_bytes(counts, p, precision) == sent


def test_every_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = images(tmp_path / "data", {"cat": 20, "dog": 20})
    for name in ("cat/3.png", "dog/7.png"):
        (folder / name).write_bytes(b"no image")
    found = check_site(folder, QUICK, POLICY)
    assert not found.ok
    assert all(any(name in fault for fault in found.faults) for name in ("cat/3.png", "dog/7.png"))


def test_images_that_are_there_twice_are_told(tmp_path: Path) -> None:
    folder = images(tmp_path / "data", {"cat": 20, "dog": 20})
    (folder / "dog" / "copy.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    assert check_site(folder, QUICK, POLICY).warnings[0] == "1 images are there twice, 1 of them in two classes"


def test_good_recordings_can_join(tmp_path: Path) -> None:
    found = check_site(recordings(tmp_path / "data"), RUN)
    assert (found.faults, found.kind) == ([], "eeg")
    assert found.classes == {"left_hand": 20, "right_hand": 20}
    assert found.details["recordings"] == 4 and "T1 (20), T2 (20)" in found.details["annotations"]
    assert "19.8 microvolt" in found.details["unit"]


def test_recordings_are_described_before_the_events_are_known(tmp_path: Path) -> None:
    found = check_site(recordings(tmp_path / "data"))
    assert found.ok and not found.classes
    assert any("data.events" in text for text in found.warnings)


@pytest.mark.parametrize(("scale", "factor"), [(1e-6, "1e+06"), (1e6, "1e-06"), (1e-3, "1000")])
def test_a_wrong_unit_is_told_with_the_factor_that_mends_it(tmp_path: Path, scale: float, factor: str) -> None:
    folder = recordings(tmp_path / "data", scale)
    assert any(f"multiply data.scale by {factor}" in fault for fault in check_site(folder, RUN).faults)
    assert check_site(folder, (*RUN, f"data.scale={factor}")).ok


def test_an_epsilon_that_clamps_everything_is_a_fault_with_one_that_fits(tmp_path: Path) -> None:
    folder = recordings(tmp_path / "data")
    words_ = (*RUN, "covariances.recentre=false", "data.band=null")
    found = check_site(folder, (*words_, "model.epsilon=1e6"))
    (fault,) = found.faults
    assert "model.epsilon=1e+06 clamps 100.0 % of the eigenvalues, so that nothing can be learned" in fault
    fits = fault.rsplit("set it to ", 1)[1].split(" ")[0]
    assert check_site(folder, (*words_, f"model.epsilon={fits}")).ok


def test_recordings_that_do_not_go_together_are_told(tmp_path: Path) -> None:
    folder = recordings(tmp_path / "data")
    save_fif(make_raw(channels=("C4", "Fp1", "C3")), folder / "patient" / "run-9.fif")
    assert any("no channel Oz" in fault for fault in check_site(folder, RUN).faults)


def test_a_recording_that_breaks_off_is_named(tmp_path: Path) -> None:
    folder = recordings(tmp_path / "data")
    path = folder / "patient" / "run-2.fif"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    mne.set_log_level("ERROR")
    assert any("run-2.fif" in fault for fault in check_site(folder, RUN).faults)


def node_config(tmp_path: Path, **more: str) -> Path:
    told = {
        "name": "berlin",
        "policy": POLICY,
        **{f"{part}-path": tmp_path / part for part in ("data", "state", "output")},
    }
    path = tmp_path / "site.toml"
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in (told | more).items()))
    return path


def test_a_node_config_is_checked_with_its_folders(tmp_path: Path) -> None:
    images(tmp_path / "data", {"cat": 20, "dog": 20})
    assert check_site(node_config(tmp_path), QUICK).ok
    assert check_site(node_config(tmp_path, colour="red"), QUICK).faults[0].startswith("node-config: unknown colour")
    pinned = check_site(node_config(tmp_path, code="0" * 64), QUICK)
    assert any(fault.startswith("code=000000000000: the app here is") for fault in pinned.faults)
    (tmp_path / "file").write_text("")
    blocked = check_site(node_config(tmp_path, **{"output-path": str(tmp_path / "file" / "o")}), QUICK)
    assert any(fault.startswith("output-path=") for fault in blocked.faults)


def test_the_sites_policy_decides_what_is_told(tmp_path: Path) -> None:
    folder = images(tmp_path / "data", {"cat": 40, "dog": 20})
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"min_count: 20\n{POLICY.read_text()}")
    assert check_site(folder, QUICK, policy).shared == {"cat": 20}


@pytest.mark.parametrize("what", ["nothing", "text", "few"])
def test_what_cannot_join_exits_with_1_and_says_so(tmp_path: Path, what: str, capsys: Any) -> None:
    folder = tmp_path / "data"
    if what == "text":
        folder.mkdir()
        (folder / "notes.txt").write_text("x")
    if what == "few":
        images(folder, {"cat": 4, "dog": 4})
    assert script.main([str(folder), *QUICK, "--policy", str(POLICY)]) == 1
    said = capsys.readouterr().out
    assert "FAULT: " in said and said.strip().endswith("the site cannot join yet")


@pytest.mark.parametrize("kind", ["images", "eeg"])
def test_the_script_prints_json_and_nothing_else(tmp_path: Path, kind: str, capsys: Any) -> None:
    made = images(tmp_path / "data", {"a": 20, "b": 20}) if kind == "images" else recordings(tmp_path / "data")
    assert script.main([str(made), "--json", "--policy", str(POLICY), *(QUICK if kind == "images" else RUN)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and list(said["classes"].values()) == [20, 20]


def test_images_do_not_fit_a_run_over_recordings(tmp_path: Path) -> None:
    found = check_site(images(tmp_path / "data", {"cat": 20, "dog": 20}), RUN)
    assert "holds images, experiment=eeg_folder is for recordings" in found.faults[0]


def test_nothing_is_written_beside_the_data(tmp_path: Path) -> None:
    recordings(tmp_path / "data")
    check_site(tmp_path / "data", RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_words_end_with_the_verdict() -> None:
    assert words(SiteFindings("/data"))[-1] == "the site can join"
    assert words(SiteFindings("/data", faults=["x"]))[-2:] == ["  FAULT: x", "the site cannot join yet"]


def test_a_rehearsal_looks_at_the_sites_data_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, empty = images(tmp_path / "good", {"cat": 40, "dog": 40}), tmp_path / "empty"
    empty.mkdir()
    words = ["--data", str(good), str(empty), "experiment=image_folder", "encoder=pixels"]
    words += [f"run_dir={tmp_path / 'run'}"]
    assert deploy_local.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --data {empty}: ") and "holds neither images nor recordings" in said
    assert said.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_class_without_an_annotation_is_a_warning(tmp_path: Path) -> None:
    found = check_site(recordings(tmp_path / "data", labels=("T1",) * 10), RUN)
    assert "no annotation of class right_hand (T2): is data.events spelt as they are?" in found.warnings


def test_a_recording_folder_and_a_run_say_the_same_of_one_channel(tmp_path: Path) -> None:
    folder = recordings(tmp_path / "data")
    raw = make_raw(seed=9)
    raw._data[0] *= 1000
    save_fif(raw, folder / "patient" / "run-2.fif")
    (fault,) = check_site(folder, RUN).faults
    assert "patient/run-2.fif: channel C4 has a standard deviation of" in fault and "data.bad_channels=drop" in fault
    found = check_site(folder, (*RUN, "data.bad_channels=drop"))
    assert found.ok and any("channel C4" in text and "left out of all recordings" in text for text in found.warnings)


def test_a_bids_folder_is_looked_at_as_the_run_reads_it(tmp_path: Path) -> None:
    """Values of one trial_type belong to one class, in the counts and in the warnings."""
    for subject, seed in (("1", 1), ("2", 2)):
        raw = make_raw(
            seed=seed, seconds=90.0, labels=("left", "right") * 10, onsets=[2.0 + 4 * trial for trial in range(20)]
        )
        path = mne_bids.BIDSPath(subject=subject, task="mi", datatype="eeg", root=tmp_path / "bids")
        mne_bids.write_raw_bids(raw, path, format="BrainVision", allow_preload=True, verbose="ERROR")
        (table,) = (tmp_path / "bids").glob(f"sub-{subject}/eeg/*_events.tsv")
        head, *rows = [line.split("\t") for line in table.read_text().splitlines()]
        place = head.index("value")
        for number, row in enumerate(rows):
            row[place] = str(20 + number % 4)
        table.write_text("".join("\t".join(row) + "\n" for row in (head, *rows)))
    words_ = ("experiment=eeg_folder", "data=eeg_bids", "data.task=mi", "data.events={left: left, right: right}")
    found = check_site(tmp_path / "bids", (*words_, "data.window=[0.0,1.5]", "model.hidden=[3]"))
    assert found.classes == {"left": 20, "right": 20}
    assert found.faults == []
    assert not any("no annotation of class" in text for text in found.warnings)


def test_whatever_goes_wrong_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug\nin two lines")

    folder = recordings(tmp_path / "data")
    monkeypatch.setattr("app.tools.site_check_eeg.check_recordings", broken)
    (fault,) = check_site(folder, RUN).faults
    assert fault == f"{folder}: cannot be checked (ZeroDivisionError: a bug in two lines)"


def test_a_library_that_trips_over_a_recording_is_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("singular")

    folder = recordings(tmp_path / "data")
    monkeypatch.setattr("mne.io.BaseRaw.filter", broken)
    (fault,) = check_site(folder, RUN).faults
    assert fault == "subject patient, patient/run-0.fif: cannot be processed (RuntimeError: singular)"
