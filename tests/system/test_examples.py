"""The examples of the documentation print what they say."""

import doctest
import subprocess
import sys

from tests.conftest import ROOT


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
