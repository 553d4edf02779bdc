"""Small EEG recordings for the tests, made of noise with a class-dependent rhythm, and writers mne lacks."""

import struct
from collections.abc import Sequence
from pathlib import Path

import mne
import numpy as np
from scipy.io import savemat

CHANNELS = ("C4", "Fp1", "C3", "Oz")
ONSETS = tuple(range(2, 42, 4))
EVENTS = {"left_hand": "T1", "right_hand": "T2"}


def make_raw(
    *,
    channels: Sequence[str] = CHANNELS,
    rate: float = 160.0,
    seconds: float = 45.0,
    labels: Sequence[str] = ("T1", "T2") * 5,
    onsets: Sequence[float] = ONSETS,
    seed: int = 0,
) -> mne.io.RawArray:
    """A recording of 20 microvolt noise (in volts, as mne wants it) with an annotation at each onset."""
    data = 20e-6 * np.random.default_rng(seed).standard_normal((len(channels), round(seconds * rate)))
    raw = mne.io.RawArray(data, mne.create_info(list(channels), rate, "eeg"), verbose="ERROR")
    raw.set_annotations(mne.Annotations(onsets, [0.0] * len(onsets), labels))
    return raw


def save_fif(raw: mne.io.BaseRaw, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.save(path, fmt="double", overwrite=True, verbose="ERROR")
    return path


def save(raw: mne.io.BaseRaw, path: Path) -> Path:
    """Write a recording in the format its suffix tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".fif":
        return save_fif(raw, path)
    if path.suffix == ".set":
        _save_set(raw, path)
    elif path.suffix == ".gdf":
        _save_gdf(raw, path)
    else:
        mne.export.export_raw(path, raw, verbose="ERROR")
    return path


def _save_set(raw: mne.io.BaseRaw, path: Path) -> None:
    """EEGLAB's one-file form: a MATLAB structure."""
    rate = raw.info["sfreq"]
    events = [(float(a["onset"] * rate + 1), a["description"], 0.0) for a in raw.annotations]
    structure = {
        "setname": path.stem, "nbchan": float(len(raw.ch_names)), "pnts": float(raw.n_times), "trials": 1.0,
        "srate": rate, "xmin": 0.0, "xmax": (raw.n_times - 1) / rate, "data": (raw.get_data() * 1e6).astype("f4"),
        "chanlocs": np.array([(name,) for name in raw.ch_names], dtype=[("labels", "O")]),
        "event": np.array(events, dtype=[("latency", "O"), ("type", "O"), ("duration", "O")]),
        "epoch": [], "icawinv": [], "icaweights": [], "icasphere": [],
    }  # fmt: skip
    savemat(path, {"EEG": structure}, appendmat=False)


def _save_gdf(raw: mne.io.BaseRaw, path: Path) -> None:
    """GDF 2.20 with float32 samples in microvolt, one record a second, and a table of event codes."""
    rate, n = round(raw.info["sfreq"]), len(raw.ch_names)
    data = (raw.get_data() * 1e6).astype("<f4")
    records = data.shape[1] // rate
    fixed = b"GDF 2.20" + b"X X".ljust(66) + bytes(10) + bytes(4) + b"none".ljust(64) + bytes(16)
    fixed += struct.pack("<QQH", 0, 0, 1 + n) + bytes(6 + 8 + 6 + 6 + 12 + 12)
    fixed += struct.pack("<qIIHH", records, 1, 1, n, 0)
    assert len(fixed) == 256
    variable = b"".join(name.encode().ljust(16, b"\0") for name in raw.ch_names) + bytes(86 * n)
    variable += struct.pack(f"<{n}H", *[4275] * n)  # the code of microvolt
    for limit in (-1e4, 1e4, -1e4, 1e4):  # physical and digital minimum and maximum
        variable += struct.pack(f"<{n}d", *[limit] * n)
    variable += bytes((68 + 12) * n) + struct.pack(f"<{n}i", *[rate] * n) + struct.pack(f"<{n}i", *[16] * n)
    variable += bytes((12 + 20) * n)
    blocks = data[:, : records * rate].reshape(n, records, rate).transpose(1, 0, 2)
    k = len(raw.annotations)
    table = struct.pack("<B", 1) + struct.pack("<I", k)[:3] + struct.pack("<f", rate)
    table += struct.pack(f"<{k}I", *[round(a["onset"] * rate) + 1 for a in raw.annotations])
    table += struct.pack(f"<{k}H", *[int(a["description"]) for a in raw.annotations])
    path.write_bytes(fixed + variable + blocks.tobytes() + table)


def take_records_out(path: Path, first: int, last: int) -> Path:
    """Make an EDF or BDF file one with a gap: records ``first`` to ``last`` (not included, a second each) are gone."""
    content = path.read_bytes()
    head, records = int(content[184:192]), int(content[236:244])
    size = (len(content) - head) // records
    kind = b"BDF+D" if path.suffix == ".bdf" else b"EDF+D"
    fields = content[:192] + kind.ljust(44) + str(records - last + first).encode().ljust(8) + content[244:head]
    path.write_bytes(fields + content[head : head + first * size] + content[head + last * size :])
    return path
