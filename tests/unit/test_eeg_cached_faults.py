"""What a cache must not mix up, and what a header must not point to."""

from pathlib import Path

import mne
import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data.eeg import subjects
from app.data.eeg.folder import eeg_folder
from tests.eeg_files import CHANNELS, EVENTS, make_raw, save


def test_channels_that_are_swapped_by_a_setting_are_not_those_of_the_cache(tmp_path: Path) -> None:
    save(make_raw(), tmp_path / "data" / "S1" / "x_raw.fif")
    first, second = CHANNELS[:2]
    plain, swapped = (
        eeg_folder(tmp_path / "data", events=EVENTS, rename=rename, cache=tmp_path / "cache")[0]
        for rename in ({}, {first: second, second: first})
    )
    assert plain.channels == swapped.channels
    places = [plain.channels.index(name) for name in (first, second)]
    assert np.array_equal(plain.trials[:, places], swapped.trials[:, places[::-1]])


def test_what_channels_are_bad_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = make_raw()
    raw._data[CHANNELS.index("Oz")] = 3e-6
    save(raw, tmp_path / "data" / "S1" / "x_raw.fif")
    settings = {"events": EVENTS, "bad_channels": "drop", "cache": tmp_path / "cache"}
    (before,) = eeg_folder(tmp_path / "data", **settings)
    monkeypatch.setattr(subjects, "bad_channels", lambda *_: pytest.fail("judged again"))
    (after,) = eeg_folder(tmp_path / "data", **settings)
    assert after.notes == before.notes and "Oz" not in after.channels
    assert np.array_equal(after.trials, before.trials)


def test_a_header_that_points_to_another_recordings_samples_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "S1"
    folder.mkdir(parents=True)
    for name, seed in (("run4", 1), ("run8", 2)):
        mne.export.export_raw(folder / f"{name}.vhdr", make_raw(seed=seed), fmt="brainvision", verbose="ERROR")
    header = folder / "run4.vhdr"
    header.write_text(header.read_text().replace("DataFile=run4.eeg", "DataFile=run8.eeg"))
    with pytest.raises(FedgeoError, match=r"run4.vhdr: line \d+ of the header points to run8.eeg, and run4.eeg lies"):
        eeg_folder(tmp_path / "data", events=EVENTS)
