"""What was found in a site's data, and how it is told."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..config.privacy import rounded_counts, scoring_step, smallest_reported
from ..config.schema import Privacy


@dataclass
class SiteFindings:
    """What was found. faults: what keeps the site from joining. warnings: what deserves a look.

    classes: samples of each class. training: those of them that are trained on. shared: the counts as they are told
    under the policy; a class that is not in it is left out. bytes_statistics: what the class statistics take, None
    where none are shared or the encoder is not known. details: further facts, of EEG for the most part.
    """

    path: str
    kind: str = "unknown"
    code: str = ""
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    training: dict[str, int] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    bytes_statistics: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def count(
    found: SiteFindings,
    classes: Sequence[str],
    labels: np.ndarray,
    training: np.ndarray,
    test: np.ndarray,
    statistics: bool,
) -> None:
    """Samples by class, and what the policy lets be told of them.

    labels, training, test: of all samples, of those that are trained on and of those that are scored, int (n,).
    statistics: whether the run asks for statistics of classes.
    """
    bound = Privacy(**found.policy)
    every = np.bincount(labels, minlength=len(classes))
    own = np.bincount(training, minlength=len(classes))
    found.classes = dict(zip(classes, every.tolist(), strict=True))
    found.training = dict(zip(classes, own.tolist(), strict=True))
    told = rounded_counts(own, bound)
    found.shared = {name: int(n) for name, n in zip(classes, told, strict=True) if n}
    if left := [name for name, n in found.training.items() if n > 0 and name not in found.shared]:
        found.warnings.append(
            f"fewer than {smallest_reported(bound)} training samples, so the class is left out: {', '.join(left)}"
        )
    scored = np.bincount(test, minlength=len(classes)) // scoring_step(bound)
    if bare := [name for name, n in zip(classes, scored, strict=True) if name in found.shared and not n]:
        found.warnings.append(
            f"fewer than {scoring_step(bound)} test samples, so the class is not scored here: {', '.join(bare)}"
        )
    if statistics and found.shared and max(found.shared.values()) < bound.min_total:
        found.warnings.append(
            f"no class has privacy.min_total={bound.min_total} samples here: unless other sites hold the rest of one, "
            "the run ends before anything is shared"
        )
    if not found.shared:
        found.faults.append(
            f"no class has privacy.min_count={smallest_reported(bound)} training samples, as one must to take part"
        )


def words(found: SiteFindings) -> list[str]:
    """The findings as lines for a person."""
    lines = [f"{found.path}: {found.kind}" if found.kind != "unknown" else found.path]
    lines += [f"  {name}: {value}" for name, value in found.details.items() if not isinstance(value, dict | list)]
    if found.classes:
        lines.append("  class: samples, of them for training, told to the server")
        for name, samples in found.classes.items():
            told = found.shared.get(name)
            lines.append(f"    {name}: {samples}, {found.training[name]}, {'left out' if told is None else told}")
    if found.policy:
        bounds = ", ".join(f"{key}={_shown(value)}" for key, value in found.policy.items() if key != "policy")
        lines.append(f"  policy: {found.policy['policy']} ({bounds})")
    if found.bytes_statistics is not None:
        lines.append(f"  class statistics: {found.bytes_statistics:,} bytes, once; then the model's weights each round")
    elif found.classes and "settings" not in found.details:
        lines.append("  shared each round: the model's weights, and how many samples of each class were right or wrong")
    lines.append(f"  code: {found.code}")
    lines += [f"  warning: {text}" for text in found.warnings]
    lines += [f"  FAULT: {text}" for text in found.faults]
    lines.append("the site can join" if found.ok else "the site cannot join yet")
    return lines


def _shown(value: Any) -> str:
    """A bound as a policy file has it."""
    return "null" if value is None else f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
