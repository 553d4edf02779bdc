"""Names from elsewhere (files, classes, sites) where people and programs read them: nothing in them is obeyed."""

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = (*"=+-@\t\r", *"\uff1d\uff0b\uff0d\uff20")  # the last four are the first ones at full width


def shown(text: str) -> str:
    """``text`` with control characters, turned writing directions and halves of characters as their escapes.

    Tabs and line ends stay: 'a\\x1b[2J' -> what clears no terminal.
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cell(text: str) -> str:
    """``text`` for a csv file: what a spreadsheet would take for a formula begins with an apostrophe; numbers stay."""
    return f"'{shown(text)}" if text.startswith(_FORMULA) and not _is_number(text) else shown(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
