"""Text tables that people and programs write beside recordings, in whichever encoding they have."""

import codecs
import csv
from pathlib import Path

from ...common.errors import FedgeoError, cause


def read_table(path: Path, delimiters: str) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a table with a head, read as UTF-8, else as Latin-1; UTF-16 where it says so itself.

    delimiters: those that may be meant, the one that the head has most of counts. Cells come without spaces around
    them; one that a row lacks is empty. Raises FedgeoError naming the file where it is no text.
    """
    text = _decoded(path)
    lines = text.splitlines()
    head = lines[0] if lines else ""
    delimiter = max(delimiters, key=head.count)
    reader = csv.DictReader(lines, delimiter=delimiter, restval="")
    columns = [column.strip() for column in reader.fieldnames or ()]
    reader.fieldnames = columns
    rows = [{key: (value or "").strip() for key, value in row.items() if key is not None} for row in reader]
    return columns, rows


def require_utf8(path: Path) -> None:
    """Refuse a table in another encoding than UTF-8, which mne-bids reads alone, by name."""
    if not path.is_file():
        return
    try:
        path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise FedgeoError(f"{path}, line {line}: not UTF-8, which BIDS wants: save the table as UTF-8") from None


def _decoded(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedgeoError(f"{path}: cannot be read ({cause(error)})") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        raise FedgeoError(f"{path}: not a text table: save it as CSV in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
