"""The Flower engine: a private SuperLink with Ray behind it, which runs are submitted to as `flwr run` does.

The SuperLink works in an empty folder with a Flower home of its own: Ray workers import from its working
directory before the app's bundle, and the user's Flower configuration is left alone. Every process that it starts
carries a mark in its environment, so that stopping leaves none behind.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from app.errors import FedgeoError

ROOT = Path(__file__).resolve().parent.parent.parent
PACKED = ("pyproject.toml", "README.md", "LICENSE", "server_app.py", "client_app.py", "app", "conf")
MARK = "FEDGEO_SUPERLINK"
START_SECONDS = 60.0
NAME = "fedgeo"  # of the SuperLink in the private configuration


class SuperLink:
    """A SuperLink for simulations on this machine; a context manager that ends all it started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedgeo-"))
        self.mark = uuid.uuid4().hex
        self.log = self.folder / "superlink.log"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "SuperLink":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        (self.folder / "empty").mkdir()
        (self.folder / "home").mkdir()
        self._copy_app()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = f'[superlink]\ndefault = "{NAME}"\n[superlink.{NAME}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.folder / "home" / "config.toml").write_text(config)
        command = [
            *_program("flower-superlink"),
            *("--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)),
            "--disable-runtime-dependency-installation",
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder / "empty",
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while not _healthy(port):
            if self.process.poll() is not None or time.monotonic() > end:
                raise FedgeoError(f"the SuperLink did not start: {self.log_tail()}")
            time.sleep(0.1)

    def _copy_app(self) -> None:
        """The app under a name that Flower accepts, whatever its folder is called."""
        target = self.folder / "fedgeo"
        target.mkdir()
        for name in PACKED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, target / name)

    def _environment(self) -> dict[str, str]:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {
            **os.environ,
            **one,
            MARK: self.mark,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_ADDRESS": "local",  # never join somebody's cluster by accident
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }

    def submit(self, experiment: str, overrides: str, nodes: int) -> str:
        """Start a run with ``nodes`` simulated nodes; returns its id."""
        settings = self.folder / f"run-{uuid.uuid4().hex}.toml"
        settings.write_text(f"experiment = {json.dumps(experiment)}\noverrides = {json.dumps(overrides)}\n")
        answer = self._flwr(
            *("run", str(self.folder / "fedgeo"), NAME, "-c", str(settings)),
            *("--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"),
        )
        return str(answer["run-id"])

    def status(self, run_id: str) -> tuple[str, str]:
        """(status, details) of a run: the truth, which the exit code of `flwr run` does not tell."""
        run = self._flwr("list", NAME, "--run-id", run_id)["runs"][0]
        return str(run["status"]), str(run.get("status-details") or "")

    def alive(self) -> bool:
        """Whether the SuperLink still runs."""
        return self.process is not None and self.process.poll() is None

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*_program("flwr"), *arguments, "--format", "json"],
            cwd=self.folder / "empty",
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": done.stdout + done.stderr}
        if not answer.get("success"):
            raise FedgeoError(f"flwr {arguments[0]} failed: {answer.get('error-message', done.stderr)}")
        return dict(answer)

    def log_tail(self, lines: int = 15) -> str:
        """The end of the SuperLink's log."""
        if not self.log.exists():
            return "it left no log"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the SuperLink and every process that it or Ray started, and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        marked = list(self._marked())
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, stubborn = psutil.wait_procs(marked, timeout=5)
        for process in [*stubborn, *self._marked()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    yield process
            except (psutil.Error, OSError):
                continue


def _program(name: str) -> list[str]:
    """A console script of this interpreter's environment, whether or not that is activated."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FedgeoError(f"{name} is not installed beside {sys.executable}: run make, or pip install '.'")
    return [str(path)]


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
