"""What is installed and what is sent: a wheel, an editable installation and a bundle of Flower's, each made and used.

The programs below run without this environment's own modules (`python -I -S`), in another folder, and find nothing but
what is under test and the packages that it needs.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from app.common.code import code_hash
from tests.conftest import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "server_app.py", "client_app.py", "app", "conf")

WHEEL = """
import importlib, pathlib, pkgutil
import fedgeo
modules = [m.name for m in pkgutil.walk_packages(fedgeo.__path__, "fedgeo.") if m.name != "fedgeo.launch.watchdog"]
for name in modules:
    importlib.import_module(name)
assert {"fedgeo.strategies.base", "fedgeo.data.eeg.dataset", "fedgeo.runs.reader"} <= set(modules)
assert importlib.util.find_spec("app") is None

from fedgeo.common.targets import load_class
from fedgeo.algorithms.base import Algorithm
from fedgeo.algorithms.fedprox import FedProx
from fedgeo.config.compose import dump, load
config = load(("method=fedprox",))
assert "target: app.algorithms.fedprox:FedProx" in dump(config)
assert load_class(config.method.target, Algorithm, "method.target") is FedProx

from fedgeo.common.code import code_hash
from fedgeo.launch.job import plan, run_in_process
small = ["augmentation=ggeur", "federation.rounds=1", "federation.clients=3"]
job = plan(["engine=inprocess", f"run_dir={folder}/run", *small])
assert run_in_process(job, lambda row: None)["status"] == "completed"
assert not [name for name in sys.modules if name.partition(".")[0] == "app"]
print(code_hash())
print(pathlib.Path(fedgeo.__file__).parent)
"""

EDITABLE = """
import site
site.addsitedir(installed)
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
sys.path.insert(0, folder)
if __name__ == "__main__":
    sys.path.insert(0, sources)
    import app.common.errors, fedgeo.common.errors
    assert fedgeo is app and fedgeo.common.errors is app.common.errors
    import outside
    assert issubclass(outside.Mine, app.common.errors.FedgeoError)
    for way in ("spawn", "forkserver"):
        with ProcessPoolExecutor(1, mp_context=get_context(way)) as pool:
            print(pool.submit(outside.name_of, outside.Mine(), sources).result())
    print(fedgeo.__file__)
"""

# the other process imports this module first, and by it the package under the name fedgeo
OUTSIDE = """
import sys
from fedgeo.common.errors import FedgeoError

class Mine(FedgeoError): ...

def name_of(fault, sources):
    sys.path.insert(0, sources)
    import app.common.errors
    return f"{type(fault).__name__} {isinstance(fault, app.common.errors.FedgeoError)}"
"""


def run(code: str, folder: Path, path: list[Path], **names: object) -> list[str]:
    """The lines that ``code`` prints, run in ``folder`` with nothing but ``path`` and the packages on its path."""
    packages = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    given = "".join(f"{name} = {str(value)!r}\n" for name, value in {"folder": folder, **names}.items())
    program = folder / "program.py"
    program.write_text(
        f"import sys\nsys.path[:] = {[str(p) for p in path]} + [p for p in sys.path if p != {str(folder)!r}]"
        f" + {[str(p) for p in packages]}\n{given}{code}"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program)], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built from, so that the clone stays clean."""
    folder = tmp_path_factory.mktemp("sources") / "fedgeo"
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def unpacked(archive: Path, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(sources)], capture_output=True, text=True, check=True)
    (archive,) = folder.glob("fedgeo-*.whl")
    return unpacked(archive, folder / "installed")


def test_a_wheel_is_the_whole_package_and_runs_under_its_own_name(wheel: Path, tmp_path: Path) -> None:
    *_, digest, where = run(WHEEL, tmp_path, [wheel])
    assert where == str(wheel / "fedgeo")
    assert digest == code_hash()
    assert "target: app.algorithms.fedavg:FedAvg" in (tmp_path / "run" / "config.yaml").read_text()
    held = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.suffix not in (".pyc", "")}
    assert not [name for name in held if not name.startswith(("fedgeo/", "fedgeo-"))]
    assert len([name for name in held if name.endswith(".yaml")]) == len(list((ROOT / "conf").rglob("*.yaml")))


def test_an_editable_installation_is_the_folder_itself(sources: Path, tmp_path: Path) -> None:
    build = f"from setuptools import build_meta\nprint(build_meta.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=sources, capture_output=True, text=True, check=True)
    (archive,) = tmp_path.glob("*.whl")
    installed = unpacked(archive, tmp_path / "installed")
    (tmp_path / "outside.py").write_text(OUTSIDE)
    # first on the path: a finder that this environment's own installation has bears the same name
    *_, spawned, forked, where = run(EDITABLE, tmp_path, [installed], installed=installed, sources=sources)
    assert (spawned, forked) == ("Mine True", "Mine True")
    assert where == str(sources / "app" / "__init__.py")


def test_a_bundle_holds_what_the_app_needs_and_nothing_else(sources: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sources, tmp_path / "fedgeo")
    shutil.copy(ROOT / ".gitignore", folder)
    for extra in ("runs/one/config.yaml", "docs/page.md", "app/__pycache__/x.pyc", "build/lib/fedgeo/x.py"):
        (folder / extra).parent.mkdir(parents=True, exist_ok=True)
        (folder / extra).touch()
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    flwr = str(Path(sys.executable).parent / "flwr")
    subprocess.run([flwr, "build"], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    (archive,) = folder.glob("*.fab")
    bundle = unpacked(archive, tmp_path / "bundle")
    held = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "app").rglob("*.py")}
    settings = {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    assert held == code | settings | set(SOURCES) - {"app", "conf"} | {".info/CONTENT"}
    (digest,) = run("from app.common.code import code_hash\nprint(code_hash())", tmp_path, [bundle])
    assert digest == code_hash()
