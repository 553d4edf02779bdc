"""The systemd units of docs/units: systemd reads them, Flower knows the options, and what makes them safe is there."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from tests.conftest import ROOT

UNITS = ROOT / "docs" / "units"
PARSERS = {"flower-superlink": _parse_args_run_superlink, "flower-supernode": _parse_args_run_supernode}
SERVICES = {"fedgeo-superlink.service": "flower-superlink", "fedgeo-supernode.service": "flower-supernode"}
CLOSED = {
    "User": "fedgeo",
    "Restart": "always",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
}


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(UNITS / name)
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_closed_and_comes_back(name: str) -> None:
    service = unit(name)["Service"]
    assert {key: service.get(key) for key in CLOSED} == CLOSED
    assert unit(name)["Unit"]["StartLimitIntervalSec"] == "0"  # it never gives up


@pytest.mark.parametrize(("name", "program"), SERVICES.items())
def test_flower_knows_the_options(name: str, program: str) -> None:
    path, *words = shlex.split(unit(name)["Service"]["ExecStart"])
    assert Path(path).name == program
    options = PARSERS[program]().parse_args(words)
    if program == "flower-superlink":
        assert options.database and options.enable_supernode_auth and not options.insecure
    else:
        assert options.root_certificates and options.auth_supernode_private_key and not options.insecure
        assert options.host == "127.0.0.1"


def test_the_timer_looks_where_the_supernode_answers() -> None:
    words = shlex.split(unit("fedgeo-supernode.service")["Service"]["ExecStart"])
    options = _parse_args_run_supernode().parse_args(words[1:])
    looks = unit("fedgeo-supernode-health.service")["Service"]["ExecStart"]
    assert f"http://{options.host}:{options.port}/health ||" in looks
    assert "try-restart fedgeo-supernode.service" in looks
    assert unit("fedgeo-supernode-health.timer")["Timer"]["OnUnitActiveSec"] == "1min"


def test_systemd_reads_them(tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("no systemd-analyze on this machine")
    for path in UNITS.iterdir():  # a program that is not there is a fault of this machine
        text = re.sub(r"/opt/fedgeo/\.venv/bin/[\w-]+|/usr/bin/systemctl", sys.executable, path.read_text())
        (tmp_path / path.name).write_text(text)
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run([analyse, "verify", *paths], capture_output=True, text=True, check=False)
    faults = [line for line in done.stderr.splitlines() if "fedgeo" in line]
    assert (done.returncode, faults) == (0, []), done.stderr
