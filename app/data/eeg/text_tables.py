"""Text tables that people and programs write beside recordings, in whichever encoding they have."""

import codecs
import csv
from pathlib import Path

from ...common.errors import FedgeoError, cause

JUDGED = 65536  # bytes by which mne-bids tells a table's encoding


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


def refuse_mixed_encoding(path: Path) -> None:
    """Refuse a table that mne-bids, which reads Latin-1 as well, would take for UTF-8 by its beginning and is not."""
    content = path.read_bytes() if path.is_file() else b""
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start >= JUDGED and not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            line = content[: error.start].count(b"\n") + 1
            raise FedgeoError(f"{path}, line {line}: not UTF-8, as the table is before: save it as UTF-8") from None


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
