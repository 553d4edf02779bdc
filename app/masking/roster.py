"""Who takes part in masked sums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Roster:
    """Of a run's masked sums, as the server tells it.

    attempt: a word, another one in every process that serves the run. names: of the sites, '' in simulation. keys: the
    clients' public keys. classes: those that statistics are summed of.
    """

    attempt: str
    names: dict[int, str]
    keys: dict[int, bytes]
    classes: tuple[int, ...]
