"""Tables in every format: what is written can be read back, and nothing breaks the format."""

import csv
import html.parser
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.printable import cell
from app.reports.arms import Spread, spread
from app.reports.tables import FORMATS, Table, as_html, comma_separated, escape, latex, markdown, text

TABLE = Table(
    "Two arms & a note",
    ("arm", "accuracy %", "bytes"),
    (("fed_avg", Spread(0.5, 0.0125, 3), 1200), ("a|b", Spread(0.25, None, 1), None), ("c", None, 7)),
    frozenset({1}),
    notes=("50 % of it",),
)


def test_people_read_shares_in_per_cent_and_programs_as_shares() -> None:
    assert [TABLE.words(row) for row in TABLE.rows] == [
        ["fed_avg", "50.00 ± 1.25", "1,200"],
        ["a|b", "25.00", "-"],
        ["c", "-", "7"],
    ]
    told = list(csv.reader(io.StringIO(comma_separated([TABLE]))))
    assert told[0] == ["arm", "accuracy_mean", "accuracy_std", "bytes"]
    assert told[1:] == [["fed_avg", "0.5", "0.0125", "1200"], ["a|b", "0.25", "", ""], ["c", "", "", "7"]]


def test_columns_of_figures_stand_to_the_right() -> None:
    assert TABLE.right == [False, True, True]
    lines = text([TABLE]).splitlines()
    assert lines[2].startswith("arm ") and len({len(line) for line in lines[3:7]}) == 1
    assert "---: " in markdown([TABLE]) and r"\begin{tabular}{lrr}" in latex([TABLE])


def test_words_cannot_break_a_format() -> None:
    row = markdown([TABLE]).splitlines()[5]
    assert re.split(r"(?<!\\)\|", row)[1].strip() == r"a\|b"
    made = latex([TABLE])
    assert r"fed\_avg & 50.00 $\pm$ 1.25 & 1,200 \\" in made
    assert r"Two arms \& a note" in made and r"50 \% of it" in made
    assert made.startswith("% needs \\usepackage{booktabs}\n\\begin{table}")
    assert made.count(r"\begin{") == made.count(r"\end{") == 2


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=30))
def test_any_words_are_safe_in_latex(words: str) -> None:
    """Without what escape has written itself, no character is left that LaTeX would act on."""
    named = r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}"
    rest = re.sub(rf"{named}|\\[&%$#_{{}}]", "", escape(words))
    rest = rest.replace(r"$\pm$", "").replace("$-$", "")
    assert not set(rest) & set("&%$#_{}\\~^<>")


def test_a_negative_number_has_a_minus_and_a_range_a_hyphen() -> None:
    assert escape("-0.64 and run-2, 3-1") == "$-$0.64 and run-2, 3-1"


WORDS = st.text(st.characters(exclude_characters="\r", exclude_categories=("Cs",)), max_size=8)


@given(st.lists(st.lists(WORDS, min_size=2, max_size=2), max_size=4))
def test_csv_gives_any_words_back(words: list[list[str]]) -> None:
    """But for what a spreadsheet or a terminal would obey (tests/unit/test_printable.py)."""
    table = Table("", ("a", "b"), tuple(tuple(row) for row in words))
    expected = [[cell(word) for word in row] for row in words]
    assert list(csv.reader(io.StringIO(comma_separated([table]), newline="")))[1:] == expected


class Cells(html.parser.HTMLParser):
    """The text of every cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open = tag in ("td", "th")
        if self.open:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.cells[-1] += data


def test_html_shows_the_same_cells() -> None:
    table = Table("t", ("<b>", "n"), (("a & b", 1), ("<script>", 2)))
    assert Cells(as_html(table)).cells == ["<b>", "n", "a & b", "1", "<script>", "2"]


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_table_has_its_head(form: str) -> None:
    assert "name" in FORMATS[form]([Table("nothing", ("name",), ())])


def test_spread_is_mean_and_sample_deviation() -> None:
    assert spread([]) is None
    assert spread([0.3]) == Spread(0.3, None, 1)
    assert spread([1.0, 2.0, 4.0]) == Spread(pytest.approx(7 / 3), pytest.approx((7 / 3) ** 0.5), 3)
