"""The package by its two names: what an installation holds, one tree of modules, one form in files, one hash."""

import importlib
import importlib.util
import inspect
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import app
from app.algorithms.base import Algorithm
from app.algorithms.fedprox import FedProx
from app.common.code import code_hash
from app.common.errors import FedgeoError
from app.common.targets import is_ours, load_class, written
from app.config.compose import dump, load
from tests.conftest import ROOT


def test_an_installation_holds_every_folder() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT / "app") for path in (ROOT / "app").rglob("*.py")}
    code = {".".join(("fedgeo", *folder.parts)) for folder in folders}
    assert sorted(setuptools["packages"]) == sorted(code | {"fedgeo.conf"})
    assert all((ROOT / "app" / folder / "__init__.py").is_file() for folder in folders)
    assert setuptools["package-dir"] == {"fedgeo": "app", "fedgeo.conf": "conf"}


def test_the_installed_name_leads_to_the_same_modules() -> None:
    assert importlib.import_module("fedgeo") is app
    for name in ("algorithms.base", "geometry.class_statistics", "config", "messages.records"):
        assert importlib.import_module(f"fedgeo.{name}") is importlib.import_module(f"app.{name}")
    module = importlib.import_module("fedgeo.algorithms.base")
    assert (
        module.Algorithm is Algorithm and module.__spec__ is not None and module.__spec__.name == "app.algorithms.base"
    )
    assert pickle.loads(pickle.dumps(FedProx(0.5))) == FedProx(0.5)
    assert "class Algorithm" in inspect.getsource(module)


def test_what_does_not_exist_is_missing_by_the_name_that_was_given() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'fedgeo\.nowhere'$"):
        importlib.import_module("fedgeo.nowhere")
    with pytest.raises(ModuleNotFoundError, match=r"'fedgeo\.common\.errors' is not a package"):
        importlib.import_module("fedgeo.common.errors.deeper")


def python(code: str, folder: Path, *path: Path) -> "subprocess.CompletedProcess[str]":
    """Runs ``code`` in another process that works in ``folder`` and finds modules in ``path`` first."""
    command = [sys.executable, "-I", "-c", f"import sys\nsys.path[:0] = {[str(p) for p in path]}\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_name_that_came_first_has_the_modules(tmp_path: Path) -> None:
    (tmp_path / "fedgeo").symlink_to(ROOT / "app", target_is_directory=True)  # as an editable installation has it
    code = (
        "import fedgeo.common.errors as first\n"
        "from app.common.errors import FedgeoError\n"
        "import app.common.errors as second\n"
        "print(first is second, FedgeoError.__module__, second.__spec__.name)"
    )
    done = python(code, tmp_path, tmp_path, ROOT)
    assert done.stdout.split() == ["True", "fedgeo.common.errors", "fedgeo.common.errors"], done.stderr


def test_two_versions_in_one_process_are_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "app" / "common", tmp_path / "fedgeo" / "common")
    (tmp_path / "fedgeo" / "__init__.py").touch()
    done = python("import fedgeo\nimport app", tmp_path, tmp_path, ROOT)
    assert "ImportError: fedgeo was imported from" in done.stderr.splitlines()[-1]


def test_running_as_fedgeo_leaves_other_packages_called_app_alone(tmp_path: Path) -> None:
    (tmp_path / "fedgeo").symlink_to(ROOT / "app", target_is_directory=True)
    (tmp_path / "app" / "common").mkdir(parents=True)
    (tmp_path / "app" / "common" / "errors.py").write_text("class FedgeoError: ...\n")
    code = (
        "from fedgeo.common.targets import load_class\n"
        "import app.common.errors, fedgeo.common.errors\n"
        "print(app.common.errors.__file__)\n"
        "print(load_class('app.common.errors:FedgeoError', object, 'key') is fedgeo.common.errors.FedgeoError)"
    )
    done = python(code, tmp_path, tmp_path)
    assert done.stdout.splitlines() == [str(tmp_path / "app" / "common" / "errors.py"), "True"], done.stderr


@pytest.mark.parametrize(
    ("target", "in_files", "ours"),
    [
        ("app.algorithms.moon:Moon", "app.algorithms.moon:Moon", True),
        ("fedgeo.algorithms.moon:Moon", "app.algorithms.moon:Moon", True),
        ("fedgeo_extras.moon:Moon", "fedgeo_extras.moon:Moon", False),
        ("apparatus.moon:Moon", "apparatus.moon:Moon", False),
        ("mine.app.moon:Moon", "mine.app.moon:Moon", False),
        ("app", "app", False),
    ],
)
def test_files_hold_one_form_of_a_target(target: str, in_files: str, ours: bool) -> None:
    assert written(target) == in_files
    assert (is_ours(target), is_ours(target, "models", "algorithms")) == (ours, ours)
    assert not is_ours(target, "algo", "models")


def test_the_configuration_that_is_written_names_our_classes_in_that_form() -> None:
    config = load(("method=fedprox", "method.target=fedgeo.algorithms.fedprox:FedProx"))
    assert "target: app.algorithms.fedprox:FedProx" in dump(config)


def test_a_class_is_found_by_either_name_and_refused_in_one_line() -> None:
    assert load_class("fedgeo.algorithms.fedprox:FedProx", Algorithm, "method.target") is FedProx
    for target in ("fedgeo.algorithms.nowhere:A", ".fedprox:FedProx", "app.algorithms.fedprox:", "fedprox"):
        with pytest.raises(FedgeoError, match=r"must be 'module:Class' that can be imported") as fault:
            load_class(target, Algorithm, "method.target")
        assert str(fault.value).startswith(f"method.target={target}: ") and "\n" not in str(fault.value)


def hash_of(package: Path) -> str:
    """The code hash that the copy of the package in ``package`` has of itself."""
    spec = importlib.util.spec_from_file_location("copied_code", package / "common" / "code.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.code_hash())


def test_the_code_hash_does_not_depend_on_where_and_how_the_files_lie(tmp_path: Path) -> None:
    package = shutil.copytree(ROOT / "app", tmp_path / "site-packages" / "fedgeo")
    shutil.copytree(ROOT / "conf", package / "conf")
    (package / ".hidden").mkdir()
    (package / ".hidden" / "copy.py").write_text("x = 1\n")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "base.cpython-311.pyc").write_bytes(b"compiled")
    for path in (package / "common" / "errors.py", package / "conf" / "config.yaml"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert hash_of(package) == code_hash()
    with (package / "conf" / "config.yaml").open("a") as file:
        file.write("# another\n")
    assert hash_of(package) != code_hash()
