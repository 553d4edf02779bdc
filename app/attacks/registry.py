"""An attack by the configuration's ``attack.name``, and which clients are hostile."""

import numpy as np

from ..common.errors import FedgeoError
from ..common.seeds import HOSTILE
from ..common.settings import make
from ..common.targets import load_named
from ..config.schema import Config
from .base import Attack


def load(config: Config) -> Attack | None:
    """The run's attack, None where there is none. Raises FedgeoError that names the key."""
    chosen = config.attack
    return None if chosen.name == "none" else make(find(chosen.name), "attack", chosen.settings)


def find(name: str) -> type[Attack]:
    """The class of app/attacks/<name>.py."""
    return load_named(__package__, name, Attack, "attack.name")


def hostile(config: Config, clients: int) -> tuple[int, ...]:
    """The hostile ones of so many clients, in order: ``attack.share`` of them, drawn from the seed.

    Raises FedgeoError where the share comes to fewer than the attack needs.
    """
    attack, share = load(config), config.attack.share
    if attack is None:
        return ()
    number = round(share * clients)
    if number < attack.least:
        raise FedgeoError(
            f"attack.share={share:g} of {clients} clients is {number}: attack={attack.name} needs {attack.least}"
        )
    drawn = np.random.default_rng([config.seed, HOSTILE]).permutation(clients)[:number]
    return tuple(sorted(drawn.tolist()))
