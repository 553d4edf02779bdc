"""The Flower engine: a private SuperLink with Ray behind it, which runs are submitted to as `flwr run` does."""

import secrets
import socket

from ..common.errors import FedgeoError
from .superlink import MARK, PrivateSuperLink, end_marked, free_port

__all__ = ["MARK", "SimulationSuperLink", "check_cluster", "end_marked", "simulated"]


class SimulationSuperLink(PrivateSuperLink):
    """A SuperLink for simulations; a context manager that ends all it started.

    ray_address: host:port of a running Ray cluster to simulate on; None for one of its own on this machine.
    """

    def __init__(self, ray_address: str | None = None) -> None:
        super().__init__()
        self.ray_address = ray_address
        self.token = secrets.token_hex(32)  # whoever runs a task on the run's Ray must show it

    def environment(self, home: str = "home") -> dict[str, str]:
        """What Ray goes by too. A named cluster is the user's, and so is its token: RAY_AUTH_MODE, RAY_AUTH_TOKEN."""
        inherited = super().environment(home)
        if self.ray_address is not None:
            return inherited | {"RAY_ADDRESS": self.ray_address}
        return inherited | {
            "RAY_ADDRESS": "local",  # never by accident somebody's cluster, which Ray would join if it found one
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # no further machines: Ray then listens on loopback alone
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,  # without it Ray would write one into the user's home
        }

    def _start(self) -> None:
        port = free_port()
        self.connection({"address": f"127.0.0.1:{port}", "insecure": True})
        command = ("flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port))
        self.process = self.launch((*command, "--disable-runtime-dependency-installation"), self.log)
        self.wait_until_healthy(port)


def check_cluster(address: str) -> None:
    """Raises FedgeoError where nothing listens at ``address``, host:port: Ray would wait minutes without a word."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise FedgeoError(
            f"federation.ray_address={address}: no Ray cluster answers there ({error}): start its head, `ray start "
            f"--head --port {port}`, or correct the address, or leave it out for a Ray of the run's own"
        ) from None


def simulated(nodes: int, gpus: int = 0) -> tuple[str, ...]:
    """The options of a submitted run that is simulated with this many nodes, which share the GPUs that it may use.

    Ray hides the GPUs from a node that asks for none.
    """
    share = min(1.0, gpus * 1000 // nodes / 1000)
    resources = f" client-resources-num-gpus={share:g}" if gpus else ""
    return "--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1{resources}"
