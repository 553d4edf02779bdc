"""How a site's samples are split into training, validation and test: once, by the site, whatever runs say later.

Of two runs whose training sets differ by one sample the difference of any exact statistic is that sample. So the seed
and the fractions are what site.toml says or, where it is silent, a seed from the system's randomness and the fractions
of the first run that asks, kept in the site's state. Only where the policy bounds no ``releases`` does a run decide.
"""

import json
import logging
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from ..common.errors import FedgeoError
from ..common.files import exclusive, write_atomic
from ..config.node_config import Site
from ..config.schema import Config

log = logging.getLogger(__name__)

FOLDER, FILE = "releases", "split.json"  # below the site's state


@dataclass(frozen=True)
class SiteSplit:
    """seed: of all that is drawn of a site's samples. test_fraction, val_fraction: shares of them."""

    seed: int
    test_fraction: float
    val_fraction: float


def site_split(config: Config, site: Site) -> SiteSplit:
    """The split of ``site``, made and kept where this is the first run that asks. Raises FedgeoError for a broken file.

    config: the run's, with the policy that holds at the site.
    """
    asked = SiteSplit(config.seed, config.data.test_fraction, config.data.val_fraction)
    told = (site.split_seed, site.test_fraction, site.val_fraction)
    if config.privacy.releases is None or None not in told:
        return _or(told, asked)
    found = _or(told, _kept(site.state / FOLDER, asked))
    shares = (found.test_fraction, found.val_fraction)
    if shares != (asked.test_fraction, asked.val_fraction):
        log.info("this site's own split holds: test_fraction=%g, val_fraction=%g, whatever the run says", *shares)
    return found


def _or(told: tuple[int | None, float | None, float | None], other: SiteSplit) -> SiteSplit:
    """What is told, and of ``other`` what is not."""
    seed, test, val = told
    return SiteSplit(
        other.seed if seed is None else seed,
        other.test_fraction if test is None else test,
        other.val_fraction if val is None else val,
    )


def _kept(folder: Path, asked: SiteSplit) -> SiteSplit:
    """The split that ``folder`` has; a new one with the fractions of ``asked`` where it has none."""
    path = folder / FILE
    with exclusive(folder):
        if not path.exists():
            made = SiteSplit(secrets.randbits(59), asked.test_fraction, asked.val_fraction)
            write_atomic(path, json.dumps(asdict(made)).encode(), durable=True)
        try:
            return SiteSplit(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise FedgeoError(
                f"{path}: cannot be read ({error}): put back a copy, or set split-seed, test-fraction and val-fraction "
                "in the site's node-config"
            ) from None
