"""Imports between the packages of app/ point down only, and the pure ones stay free of Flower and hydra."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.common.constant import FAB_EXCLUDE_PATTERNS

from tests.conftest import ROOT

ORDER = (  # a package imports from those further down, not from its neighbours in a line
    *("tools", "launch", "server client", "reports", "strategies", "grids", "runs", "data", "encoders", "one_shot"),
    *(
        "augmentation",
        "training messages",
        "attacks personal",
        "algorithms",
        "models",
        "config",
        "geometry masking",
        "common",
    ),
)
LEVEL = {package: level for level, packages in enumerate(reversed(ORDER)) for package in packages.split()}
PURE = ("geometry", "masking", "models", "algorithms", "attacks", "augmentation", "one_shot", "personal", "training")
FRAMEWORKS = ("flwr", "hydra", "ray")
RUNNING = ("app.runs", "app.data", "app.encoders", "app.reports", "app.server", "app.client")


def imports(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, parts of the module's name) of all imports in a file, those inside functions too."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((node.lineno, (*module, alias.name)) for alias in node.names)


IMPORTS = {path: list(imports(path)) for path in sorted((ROOT / "app").rglob("*.py"))}


def file_of(module: tuple[str, ...]) -> Path | None:
    """The file of app/ that is imported, or holds the name that is."""
    places = [ROOT.joinpath(*module[:end]) for end in range(len(module), 0, -1)]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file in IMPORTS), None)


def test_imports_point_down() -> None:
    wrong = []
    for path, found in IMPORTS.items():
        own = path.relative_to(ROOT).parts[1]
        for line, module in found:
            other = module[1] if module[0] == "app" and own != "__init__.py" else own
            if other != own and LEVEL[other] >= LEVEL[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} must not import {'.'.join(module)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("package", "without"), [*((pure, FRAMEWORKS) for pure in PURE), ("strategies", RUNNING)])
def test_what_stands_alone_does_not_reach_the_rest(package: str, without: tuple[str, ...]) -> None:
    """Not through others' imports either."""
    reached = {path: "" for path in IMPORTS if path.parent == ROOT / "app" / package}
    for path in (queue := list(reached)):
        for line, module in IMPORTS[path]:
            way = f"{reached[path]}{path.relative_to(ROOT)}:{line} -> "
            assert not ".".join(module).startswith(without), f"{way}{'.'.join(module)}"
            if module[0] == "app" and (file := file_of(module)) is not None and file not in reached:
                reached[file] = way
                queue.append(file)


def test_flowers_private_parts_are_used_in_one_module() -> None:
    public = {"app", "serverapp", "clientapp"}
    users = {
        str(path.relative_to(ROOT))
        for path, found in IMPORTS.items()
        for _, module in found
        if module[0] == "flwr" and module[1] not in public
    }
    assert users == {"app/messages/flower_private.py"}


def test_no_file_has_a_name_that_flower_s_packages_leave_out() -> None:
    """It would be missing at every node, and nowhere else."""
    left_out = [path.name for path in IMPORTS for pattern in FAB_EXCLUDE_PATTERNS if path.match(pattern)]
    assert left_out == [] and Path("app/data/own_test.py").match("**/*_test.py")
