"""What there is to say of a site's recordings: formats, channels, events, unit, and the epsilon that fits."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from ..common.errors import FedgeoError
from ..config.node_config import Site
from ..config.schema import Config, EegData
from ..data.eeg.bids import bids_recordings
from ..data.eeg.channel_quality import typical_spread, unit_factor, unlike, wrong_unit
from ..data.eeg.cutting import class_of
from ..data.eeg.folder import find_files, list_recordings
from ..data.eeg.processing import Processing
from ..data.eeg.reader_faults import unreadable
from ..data.eeg.recording import Header, Recording, agree_channels, agree_rates, normalise_channel
from ..data.eeg.subject_names import refuse_ambiguous
from ..data.eeg.subjects import scaled
from ..data.site_dataset import local_config, site_dataset
from ..models import registry as models
from ..models.spdnet import SPDNetArchitecture, bimap
from .site_findings import SiteFindings, count

CLAMPED = 0.05  # the share of eigenvalues that a fitting epsilon may clamp
UNITS = Processing({"one": "1", "two": "2"})  # how volts become microvolts, before any data.scale
MUCH, ALL = 0.2, 0.5  # shares that deserve a warning, and that nothing can be learned from


def check_recordings(found: SiteFindings, config: Config, site: Site) -> None:
    """Fill ``found`` with what the recordings are: each by itself, then all of them as the run would read them."""
    local = local_config(config, site).data
    assert isinstance(local, EegData)
    try:
        recordings = _recordings(site.data, local)
    except FedgeoError as error:
        found.faults.append(str(error))
        return
    _check_each(found, recordings, local)
    if not local.events and not local.labels_csv:
        found.warnings.append("give the run's data.events to see how many trials of each class there are")
        return
    if found.faults:
        return
    try:
        dataset = site_dataset(config, site)
        parts = [dataset.train(0), dataset.held_out("val", 0), dataset.held_out("test", 0)]
    except FedgeoError as error:
        found.faults.append(str(error))
        return
    found.warnings += getattr(dataset.inner, "notes", ())
    held = np.concatenate([part.y for part in parts])
    count(found, dataset.classes, held, parts[0].y, parts[2].y, statistics=False)
    if isinstance(architecture := models.load(config.model), SPDNetArchitecture):
        _check_epsilon(found, architecture, torch.from_numpy(parts[0].x))


def _recordings(root: Path, data: EegData) -> list[Recording]:
    """The recordings that the run would read; all of them where it would read none."""
    if data.kind == "eeg_bids":
        if not data.task:
            raise FedgeoError("data.task is needed to read a BIDS folder")
        return bids_recordings(root, data.task, runs=data.runs, rename=data.rename)
    files = find_files(root)
    if data.subject_pattern is None:
        refuse_ambiguous(files, root)
    named = list_recordings(root, files, data.subject_pattern, rename=data.rename)
    return [item for item, run in named if data.runs is None or run in data.runs] or [item for item, _ in named]


def _check_each(found: SiteFindings, recordings: list[Recording], data: EegData) -> None:
    """Open every recording by itself, so that all faults are named at once."""
    opened: list[tuple[Recording, Header]] = []
    marks: Counter[str] = Counter()
    spreads: list[float] = []
    for recording in recordings:
        try:
            raw = recording.open().raw
            header = Header(tuple(raw.ch_names), float(raw.info["sfreq"]))
            marks.update(str(text) for text in raw.annotations.description)
            if isinstance(data.channels, list):
                raw.pick([name for name in raw.ch_names if name in map(normalise_channel, data.channels)])
            microvolts = scaled(UNITS, recording.subject, data.scale).microvolts
            spread = typical_spread(raw.load_data(), microvolts)
            bad, _ = unlike(raw, microvolts)
        except FedgeoError as error:
            found.faults.append(str(error))
            continue
        except Exception as error:  # a file can also break off among its samples
            found.faults.append(str(unreadable(recording.files[0], recording.subject, recording.name, error)))
            continue
        opened.append((recording, header))
        spreads.append(spread)
        told = [f"channel {name} {why}" for name, why in bad.items()]
        if data.bad_channels == "refuse":
            advice = "repair it, set data.bad_channels=drop or interpolate, or list the other channels in data.channels"
            found.faults += [str(recording.fault(f"{text}: {advice}")) for text in told]
        if np.isfinite(spread) and unit_factor(spread) != 1:
            found.faults.append(str(recording.fault(wrong_unit(spread, recording.subject, microvolts / 1e6))))
    if not opened:
        return
    texts = {name: str(text) for name, text in (data.events or {}).items()}
    held = {class_of(mark, list(texts.values())) for mark in marks}
    absent = [f"{name} ({text})" for place, (name, text) in enumerate(texts.items()) if place not in held]
    if absent and not data.labels_csv:
        found.warnings.append(f"no annotation of class {', '.join(absent)}: is data.events spelt as they are?")
    readable, headers = zip(*opened, strict=True)
    try:
        channels = agree_channels(readable, headers, data.channels)
        agree_rates(readable, headers, data.resample)
    except FedgeoError as error:
        found.faults.append(str(error))
        channels = headers[0].channels
    size = f"a channel's standard deviation is {np.median(spreads):.3g} microvolt"
    found.details |= {
        "recordings": len(readable),
        "subjects": len({recording.subject for recording in readable}),
        "channels": f"{len(channels)}: {', '.join(channels)}",
        "sampling rate": ", ".join(f"{rate:g} Hz" for rate in sorted({head.rate for head in headers})),
        "annotations": ", ".join(f"{text} ({n})" for text, n in sorted(marks.items())) or "none",
        "unit": f"{size} with data.scale={data.scale}"
        if isinstance(data.scale, dict)
        else f"{size} with data.scale={data.scale:g}",
    }


def _check_epsilon(found: SiteFindings, model: SPDNetArchitecture, covariances: torch.Tensor) -> None:
    """The share of eigenvalues that ReEig would clamp at first, and the largest epsilon that clamps few."""
    network = model.build({"channels": covariances.shape[1]}, classes=2)
    clamped = network.clamped_fraction(covariances)
    with torch.no_grad():
        eigenvalues = torch.linalg.eigvalsh(bimap(covariances, network.blocks[0].weight())).numpy()
    fits = _round_down(float(np.quantile(eigenvalues, CLAMPED)))
    epsilon = f"model.epsilon={model.epsilon:g} clamps {100 * clamped:.1f} % of the eigenvalues"
    found.details["epsilon"] = f"{epsilon}; up to {fits:g} fits"
    if clamped > ALL:
        found.faults.append(f"{epsilon}, so that nothing can be learned: set it to {fits:g} or less")
    elif clamped > MUCH:
        found.warnings.append(f"{epsilon}: set it to {fits:g} or less")


def _round_down(value: float) -> float:
    """To one leading digit, 1, 2 or 5."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * max(digit for digit in (1, 2, 5) if digit <= value / power * (1 + 1e-12)))
