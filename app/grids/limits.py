"""How many clients may fail, and how long they are waited for."""

from dataclasses import dataclass

from ..config.schema import Federation


@dataclass(frozen=True)
class Limits:
    """Of a phase or round: the share of clients that may fail, the fewest sites of a deployment, and seconds to wait.

    hello_deadline: seconds for the first answers, before which clients encode their images.
    """

    max_failures: float = 0.0
    min_nodes: int = 2
    deadline: float = 1800.0
    hello_deadline: float = 14_400.0

    @staticmethod
    def of(federation: Federation) -> "Limits":
        """Those of a run's configuration."""
        return Limits(federation.max_failures, federation.min_nodes, federation.deadline, federation.hello_deadline)
