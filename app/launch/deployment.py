"""A deployment on loopback: a SuperLink with TLS and node keys, and a SuperNode a site, each a process of its own.

It is the rehearsal of the real thing: the same programs with the same options, on one machine.
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..common.code import CONF
from ..common.errors import FedgeoError
from .certificates import Certificates, certificates, node_key
from .superlink import NAME, START_SECONDS, PrivateSuperLink, free_port

POLICY = CONF / "rehearsal_policy.yaml"  # site.yaml's, but that data sets of small images may be tried


@dataclass(frozen=True)
class LocalSite:
    """A site of a rehearsal: its name, its data, and the folder for its state, output and log.

    policy: its policy file. split_seed: of its own split; that of the run which is rehearsed.
    """

    name: str
    data: Path
    folder: Path
    policy: Path = field(default=POLICY, kw_only=True)
    split_seed: int = field(default=1, kw_only=True)

    @property
    def output(self) -> Path:
        """Where the site finds the model, its scores and its audit log."""
        return self.folder / "output"

    @property
    def node_config(self) -> dict[str, str]:
        """The node-config of its SuperNode."""
        return {
            "name": self.name,
            "data-path": str(self.data),
            "state-path": str(self.folder / "state"),
            "output-path": str(self.output),
            "policy": str(self.policy),
            "split-seed": str(self.split_seed),
        }


class Deployment(PrivateSuperLink):
    """The SuperLink and the SuperNodes of ``sites``; a context manager that ends all it started.

    It has begun when every site is connected.
    """

    def __init__(self, sites: Sequence[LocalSite]) -> None:
        super().__init__()
        self.sites = sites
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.certificates: Certificates
        self.port = 0

    def _start(self) -> None:
        self.certificates = certificates(self.folder / "certificates")
        self.port = free_port()
        self.connection({"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.certificates.authority)})
        command = (
            "flower-superlink",
            *("--ssl-ca-certfile", str(self.certificates.authority)),
            *("--ssl-certfile", str(self.certificates.server), "--ssl-keyfile", str(self.certificates.key)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        )
        self.process = self.launch(command, self.log)
        self.wait_until_healthy(self.port, self.certificates.authority)
        for site in self.sites:
            key = self.folder / f"{site.name}.key"
            self.flwr("supernode", "register", str(node_key(key)), NAME)
            self.nodes[site.name] = self.join(site, key)
        self._wait_until_connected()

    def join(self, site: LocalSite, key: Path) -> "subprocess.Popen[bytes]":
        """Start the SuperNode of a site, with the private key that is its identity."""
        site.folder.mkdir(parents=True, exist_ok=True)
        node_config = site.folder / "site.toml"
        node_config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in site.node_config.items()))
        command = (
            "flower-supernode",
            *("--root-certificates", str(self.certificates.authority), "--superlink", f"127.0.0.1:{self.port}"),
            *("--auth-supernode-private-key", str(key), "--node-config", str(node_config)),
            *("--host", "127.0.0.1", "--port", str(free_port())),
        )
        return self.launch(command, site.folder / "supernode.log", home=f"home-{site.name}")

    def connected(self) -> int:
        """How many SuperNodes are online."""
        nodes = self.flwr("supernode", "list", NAME)["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def _wait_until_connected(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.connected() < len(self.sites):
            ended = [name for name, node in self.nodes.items() if node.poll() is not None]
            if ended or time.monotonic() > end:
                name = ended[0] if ended else self.sites[0].name
                log = next(site.folder for site in self.sites if site.name == name) / "supernode.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise FedgeoError(f"the SuperNode of {name} did not connect: {tail}")
            time.sleep(2.0)  # asking takes a second of processor time, which those that are starting need


class Connection(PrivateSuperLink):
    """A SuperLink that somebody else has started, by its name in the user's own Flower configuration."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _start(self) -> None:
        """There is nothing to start."""

    def environment(self, home: str = "home") -> dict[str, str]:
        private = super().environment(home)
        del private["FLWR_HOME"]
        return private | {key: os.environ[key] for key in ("FLWR_HOME",) if key in os.environ}

    def alive(self) -> bool:
        return True  # else `flwr` says so


def commands_for_real_machines(experiment: str, overrides: Sequence[str]) -> str:
    """The commands that do the same over real machines."""
    given = shlex.join(word for word in overrides if not word.startswith(("experiment=", "engine=", "run_dir=")))
    words = f"engine=deployment {given}".strip()
    return COMMANDS.format(experiment=experiment, words=words, overrides=json.dumps(words), given=given)


COMMANDS = """
The same over real machines. The server, once, with a certificate for its name from an authority that the sites know:
  flower-superlink --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \\
      --enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation \\
      --host 0.0.0.0 --port 8000
Each site, once: check the data, make a key, and send the server's administrator its public half, site.key.pub:
  scripts/check_site.py /path/to/data experiment={experiment} {given}
  ssh-keygen -t ecdsa -b 384 -N '' -f site.key
The server's administrator admits the key; [superlink.lab] in ~/.flwr/config.toml has the address and root-certificates:
  flwr supernode register site.key.pub lab
Each site joins, with site.toml holding name, data-path, state-path and output-path (absolute paths), and policy where
conf/privacy/site.yaml does not allow the run (this rehearsal's sites had conf/rehearsal_policy.yaml):
  flower-supernode --root-certificates ca.crt --superlink SERVER:8000 \\
      --auth-supernode-private-key site.key --node-config site.toml
The run, once `flwr supernode list lab` shows all sites online; run.toml holds
      experiment = "{experiment}"
      overrides = {overrides}
  flwr run . lab --stream -c run.toml
or, with an exit code that tells of failures and the run's progress, on the server's machine:
  scripts/run.py --superlink lab experiment={experiment} {words}"""
