"""Names from elsewhere obey nobody: no formula in csv, no escape in a terminal or log, numbers as they are."""

import csv
import io
import logging

import pytest

from app.common.logs import FORMAT
from app.common.printable import cell, shown
from app.reports.tables import Table, comma_separated, text
from app.tools.command import say


@pytest.mark.parametrize(
    "word", ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1+1", '=HYPERLINK("http://x","y")']
)
def test_a_formula_is_a_word(word: str) -> None:
    assert cell(word) == "'" + shown(word)


@pytest.mark.parametrize("word", ["-0.5", "+3", "-1e-9", "cat", "p(=x)", "", "a-b", "1"])
def test_numbers_and_words_stay(word: str) -> None:
    assert cell(word) == word


def test_in_a_table_figures_stay_figures() -> None:
    table = Table("", ("=sample", "p(=1)"), (("=2+2", -0.25), ("-7", -3)))
    rows = list(csv.reader(io.StringIO(comma_separated([table]))))
    assert rows == [["'=sample", "p(=1)"], ["'=2+2", "-0.25"], ["-7", "-3"]]


def test_escapes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    name = "cat\x1b[2J\x07\x9b\u202egpj\udce9\n\tStraße"
    seen = "cat\\x1b[2J\\x07\\x9b\\u202egpj\\udce9\n\tStraße"
    assert shown(name) == seen
    assert "\x1b" not in text([Table("", (name,), ((name,),))])
    say(name)
    assert "cat\\x1b[2J" in capsys.readouterr().out
    record = logging.LogRecord("app", logging.WARNING, "", 0, "class %s", (name,), None)
    assert FORMAT.format(record).endswith(f"class {seen}")
