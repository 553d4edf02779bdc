"""Whether a recording has the length its own header states: mne reads a cut EDF, BDF or GDF file in silence."""

from pathlib import Path

import numpy as np

_SAMPLE_BYTES = {".edf": 2, ".bdf": 3}
_GDF_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 16: 4, 17: 8}  # by the code of the sample type


def shortfall(path: Path) -> str | None:
    """How a file falls short of its header, or None where it is whole or its format states no length.

    EDF and BDF keep their numbers as text, GDF in binary, at the same places. A count of -1 records (the
    recorder was never stopped) states no length.
    """
    kind = path.suffix.lower()
    if kind not in (*_SAMPLE_BYTES, ".gdf"):
        return None
    with path.open("rb") as file:
        head = file.read(256)
        try:
            signals = int(head[252:256]) if kind != ".gdf" else int(np.frombuffer(head, "<u2", 1, 252)[0])
            channels = file.read(256 * signals)
            stated = _gdf_size(head, channels, signals) if kind == ".gdf" else _edf_size(head, channels, signals, kind)
        except (ValueError, KeyError):
            return "its header is not complete"
    size = path.stat().st_size
    return f"{size:,} bytes, its header says {stated:,}" if size < stated else None


def _edf_size(head: bytes, channels: bytes, signals: int, kind: str) -> int:
    records = int(head[236:244])
    samples = sum(int(channels[216 * signals + 8 * index :][:8]) for index in range(signals))
    return int(head[184:192]) + max(records, 0) * samples * _SAMPLE_BYTES[kind]


def _gdf_size(head: bytes, channels: bytes, signals: int) -> int:
    records = int(np.frombuffer(head, "<i8", 1, 236)[0])
    samples = np.frombuffer(channels, "<i4", signals, 216 * signals)
    types = np.frombuffer(channels, "<i4", signals, 220 * signals)
    record = sum(int(count) * _GDF_BYTES[int(code)] for count, code in zip(samples, types, strict=True))
    return 256 * (1 + signals) + max(records, 0) * record
