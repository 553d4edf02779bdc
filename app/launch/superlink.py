"""What every private SuperLink shares: a folder and a Flower home of its own, processes that carry a mark, `flwr`.

The user's Flower configuration is left alone, and programs work in an empty folder, since Flower's workers import from
their working directory before the app's bundle.
"""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

import psutil

from ..common.code import PACKAGE
from ..common.errors import FedgeoError
from ..common.targets import RUNNING

ROOT = PACKAGE.parent
PACKED = ("pyproject.toml", "README.md", "LICENSE", "server_app.py", "client_app.py", "app", "conf")
MARK = "FEDGEO_SUPERLINK"
START_SECONDS = 300.0  # a machine may be crowded; what has ended is noticed at once
NAME = "fedgeo"  # of the SuperLink in the private configuration


class PrivateSuperLink:
    """A SuperLink on this machine; a context manager that ends all it started, by a watch if it is killed.

    ``_start`` says how it begins.
    """

    name = NAME  # of the SuperLink in the Flower configuration that `flwr` reads

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedgeo-"))
        self.mark = uuid.uuid4().hex
        self.log = self.folder / "superlink.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: subprocess.Popen[bytes] | None = None
        self.programs = Path(sys.executable).parent

    def __enter__(self) -> Self:
        try:
            self.watch = self._watch()
            (self.folder / "empty").mkdir()
            self._copy_app()
            if any(letter.isspace() for letter in sys.executable):
                self._rename_programs()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        raise NotImplementedError

    def _watch(self) -> "subprocess.Popen[bytes]":
        """What ends all that was started if this process is killed: see watchdog.py."""
        return subprocess.Popen(
            [sys.executable, "-m", f"{RUNNING}.launch.watchdog", self.mark, str(self.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to this process's group spares it
        )

    def _copy_app(self) -> None:
        """The app under a name that Flower accepts, whatever its folder is called."""
        if missing := [name for name in PACKED if not (ROOT / name).exists()]:
            raise FedgeoError(
                f"{ROOT} has no {missing[0]}: a simulation or deployment starts from the repository's folder; use "
                "scripts/run.py there, or engine=inprocess"
            )
        target = self.folder / "fedgeo"
        target.mkdir()
        for name in PACKED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, target / name)

    def _rename_programs(self) -> None:
        """Flower's programs under a path without spaces, which Ray cannot start its workers from."""
        environment = self.folder / "environment"
        environment.symlink_to(sys.prefix, target_is_directory=True)
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        for entry in entry_points(group="console_scripts"):
            if entry.value.startswith("flwr."):
                module, _, function = entry.value.partition(":")
                lines = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
                script = self.programs / entry.name
                script.write_text(f"#!{environment / 'bin' / Path(sys.executable).name}\n{lines}")
                script.chmod(0o755)

    def program(self, name: str) -> str:
        """One of Flower's programs in this interpreter's environment, whether or not that is activated."""
        path = self.programs / name
        if not path.exists():
            raise FedgeoError(f"{name} is not installed beside {sys.executable}: run make, or pip install '.'")
        return str(path)

    def connection(self, settings: Mapping[str, str | bool]) -> None:
        """Tell `flwr` how to reach the SuperLink."""
        (self.folder / "home").mkdir(exist_ok=True)
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        config = f'[superlink]\ndefault = "{NAME}"\n[superlink.{NAME}]\n{lines}'
        (self.folder / "home" / "config.toml").write_text(config)

    def launch(self, command: Sequence[str], log: Path, home: str = "home") -> "subprocess.Popen[bytes]":
        """Start a program of Flower's in the empty folder, in a session of its own, with a Flower home of its own."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [self.program(command[0]), *command[1:]],
                cwd=self.folder / "empty",
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_healthy(self, port: int, certificate: Path | None = None) -> None:
        """Wait until the SuperLink answers. Raises FedgeoError with the end of its log where it does not."""
        assert self.process is not None
        end = time.monotonic() + START_SECONDS
        while not healthy(port, certificate):
            if self.process.poll() is not None or time.monotonic() > end:
                raise FedgeoError(f"the SuperLink did not start: {self.log_tail()}")
            time.sleep(0.1)

    def environment(self, home: str = "home") -> dict[str, str]:
        """The environment of all that is started; ``home`` is a folder in this one's."""
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {
            **os.environ,
            **one,
            MARK: self.mark,
            "PATH": os.pathsep.join([str(self.programs), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
        }

    def submit(self, experiment: str, overrides: str, *options: str) -> str:
        """Start a run; returns its id. ``options`` are further ones of `flwr run`."""
        settings = self.folder / f"run-{uuid.uuid4().hex}.toml"
        settings.write_text(f"experiment = {json.dumps(experiment)}\noverrides = {json.dumps(overrides)}\n")
        return str(self.flwr("run", str(self.folder / "fedgeo"), self.name, "-c", str(settings), *options)["run-id"])

    def status(self, run_id: str) -> tuple[str, str]:
        """(status, details) of a run: the truth, which the exit code of `flwr run` does not tell."""
        run = self.flwr("list", self.name, "--run-id", run_id)["runs"][0]
        return str(run["status"]), str(run.get("status-details") or "")

    def alive(self) -> bool:
        """Whether the SuperLink still runs."""
        return self.process is not None and self.process.poll() is None

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What `flwr ARGUMENTS --format json` answers. Raises FedgeoError where it fails."""
        done = subprocess.run(
            [self.program("flwr"), *arguments, "--format", "json"],
            cwd=self.folder / "empty",
            env=self.environment(),
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
            reason = " ".join(str(answer.get("error-message", done.stderr)).split())
            raise FedgeoError(f"flwr {arguments[0]} failed: {reason}")
        return dict(answer)

    def log_tail(self, lines: int = 15) -> str:
        """The end of the SuperLink's log."""
        if not self.log.exists():
            return "it left no log"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the SuperLink and every process that it or others of this mark started, and remove the folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        end_marked(self.mark)
        if self.process is not None:
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.watch is not None:
            self.watch.communicate()


def end_marked(mark: str) -> None:
    """End every process that carries this mark."""
    marked = list(_marked(mark))
    for process in marked:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(marked, timeout=5)
    for process in [*stubborn, *_marked(mark)]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                yield process
        except (psutil.Error, OSError):
            continue


def free_port() -> int:
    """A port on loopback that nobody listens on, and that nobody else is given for a minute.

    A connection that it has closed itself keeps the port from being given to others who ask for any (TIME_WAIT), while
    who names it may listen on it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
        return int(server.getsockname()[1])


def healthy(port: int, certificate: Path | None = None) -> bool:
    """Whether a SuperLink answers on this port of loopback, over TLS where a certificate is given."""
    scheme = "http" if certificate is None else "https"
    context = None if certificate is None else ssl.create_default_context(cafile=certificate)
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/health", timeout=1, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
