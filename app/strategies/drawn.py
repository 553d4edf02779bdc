"""What the clients of a run have drawn beside their own samples, as they report it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIGURES = ("added", "perturbed", "perturbation_rms")  # of one client


@dataclass(frozen=True)
class Drawn:
    """added: samples of all clients. perturbation_rms: of those that were perturbed. clients: counts by class."""

    added: int
    perturbation_rms: float
    clients: dict[int, dict[str, Any]]


NOTHING = Drawn(0, 0.0, {})


def of_all(reports: Mapping[int, tuple[Mapping[str, float], dict[str, Any]]]) -> Drawn:
    """All clients together, from each one's FIGURES and counts by class."""
    figures = [each for each, _ in reports.values()]
    perturbed = sum(each["perturbed"] for each in figures)
    energy = sum(each["perturbed"] * each["perturbation_rms"] ** 2 for each in figures)
    return Drawn(
        int(sum(each["added"] for each in figures)),
        math.sqrt(energy / perturbed) if perturbed else 0.0,
        {client: counts for client, (_, counts) in reports.items()},
    )
