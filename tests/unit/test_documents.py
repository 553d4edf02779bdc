"""README and docs/ are true: their limits, links, paths, functions and commands."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from app.config.combinations import expand
from app.config.compose import load
from app.tools.compare import Grid, arms
from scripts import compare
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_FILE = re.compile(r"\b((?:app|conf|scripts|tests|docs)/[\w/.]*\w)(?::(\w+))?")
NO_COMPOSITION = ("--help", "resume=", "damped")  # they need no configuration, a run, or a module from outside


def commands(page: Path) -> list[str]:
    """The calls of scripts/run.py in a page, without comments: from its blocks of shell, and from single backticks."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    lines += re.findall(r"`(scripts/run\.py[^`]*)`", re.sub(r"```.*?```", "", text, flags=re.S))
    calls = [line for line in map(str.strip, lines) if re.match(r"(\w+=\S+ )*scripts/run\.py", line)]
    return [call for call in calls if not any(word in call for word in NO_COMPOSITION)]


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in linked if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed | {"index.md"} == {page.name for page in PAGES[1:]}


def names_in(path: Path) -> set[str]:
    """The functions and classes at the top of a module."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_functions_exist(page: Path) -> None:
    wrong = []
    for path, name in OWN_FILE.findall(re.sub(r"https?:\S+", "", page.read_text())):
        if "NAME" in path:
            continue
        found = ROOT / path
        if not found.exists() or (name and name not in names_in(found)):
            wrong.append(f"{path}:{name}")
    assert wrong == []


def test_the_rooms_are_all_there() -> None:
    described = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    assert sorted(described) == sorted(path.parent.name for path in (ROOT / "app").glob("*/__init__.py"))


@pytest.mark.parametrize(
    ("page", "command"), [(page, command) for page in PAGES for command in commands(page)], ids=lambda x: str(x)[-60:]
)
def test_commands_compose(page: Path, command: str) -> None:
    """Every key and value of a command that begins a run is one that there is."""
    words = shlex.split(command, comments=True)
    words = [word for word in words[words.index("scripts/run.py") + 1 :] if re.match(r"\+?\w[\w.]*=", word)]
    words = [word.replace("=DIR", "=/data").replace("FILE.npz", "/data.npz") for word in words]
    assert expand(words) and all(load(chosen).experiment for chosen, _ in expand(words))


def comparisons(page: Path) -> list[str]:
    """The calls of scripts/compare.py in a page's blocks of shell."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    variables = dict(re.findall(r"^(\w+)=\"?([^\"]*)\"?$", "\n".join(lines), re.M))
    calls = [line.strip() for line in lines if line.strip().startswith("scripts/compare.py")]
    return [re.sub(r"\$(\w+)", lambda found: variables[found[1]], call) for call in calls]


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page in PAGES for command in comparisons(page)],
    ids=lambda x: str(x)[-60:],
)
def test_comparisons_compose(page: Path, command: str) -> None:
    """Every arm of a comparison is one that there is, tuned on other seeds than the table's."""
    options = compare.parse(shlex.split(command, comments=True)[1:])
    assert not set(options.seeds) & set(options.tuning_seeds)
    data = {}
    for each in options.data:
        name, *more = each.split()
        data[each] = (f"experiment={name.partition('=')[0]}", *(("data=features",) if "=" in name else ()), *more)
    words = options.arms or [f"{method} {variation}" for method in options.methods for variation in options.variations]
    assert all(arm.choices(Grid(points=options.settings)) for arm in arms(data, words, options.set))
