"""The examples of the documentation print what they say."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.running import rounds, run_in_process


def test_the_pure_modules_do_what_their_page_says() -> None:
    text = (ROOT / "docs" / "pure.md").read_text().replace("```", "")  # a fence would be taken for output
    test = doctest.DocTestParser().get_doctest(text, {}, "pure.md", "docs/pure.md", 0)
    runner = doctest.DocTestRunner(verbose=False)
    told: list[str] = []
    runner.run(test, out=told.append)
    assert runner.summarize(verbose=False).attempted > 30
    assert told == [], "".join(told)


def test_the_pure_modules_import_neither_flower_nor_hydra() -> None:
    rooms = ("common", "geometry", "models", "algorithms", "training", "augmentation", "one_shot")
    files = [path for room in rooms for path in sorted((ROOT / "app" / room).glob("[!_]*.py"))]
    assert len(files) > 40
    code = "".join(f"import {'.'.join(path.relative_to(ROOT).with_suffix('').parts)}\n" for path in files)
    code += "import sys\nprint(sorted({'flwr', 'hydra', 'omegaconf', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_method_of_the_page_on_extending_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(# damped\.py.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.S)
    (tmp_path / "damped.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    named = ("method.name=damped", "method.target=damped:Damped", "federation.rounds=1", "augmentation=none")
    run_in_process(tmp_path / "half", *named)
    run_in_process(tmp_path / "none", *named, "+method.share=1e-9")
    assert rounds(tmp_path / "half") != rounds(tmp_path / "none")
