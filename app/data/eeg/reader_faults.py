"""What to say of a recording that cannot be read: what it is, and what to do. Nobody is told to delete a file."""

import re
from collections.abc import Iterator
from pathlib import Path

from ...common.errors import FedgeoError

_PARTNERS = {"DataFile": (".eeg", ".dat", ".avg"), "MarkerFile": (".vmrk",)}
_PACKAGE = re.compile(
    r"No module named '([\w.]+)'|module (?:named )?[`'\"]?(\w+)[`'\"]? is needed|requires the (\w+) pack"
)


def unreadable(path: Path, subject: str, name: str, reason: object) -> FedgeoError:
    """The error for a file that a reader gave up on. reason: its exception, or what was found."""
    return FedgeoError(f"subject {subject}, {name}: {_cause(path, reason)}")


def cut_short(path: Path, subject: str, name: str, reason: str) -> FedgeoError:
    """The error for a file that is not whole."""
    return FedgeoError(
        f"subject {subject}, {name}: the file is cut short ({reason}): copy {path} again from where it was recorded"
    )


def missing_partner(path: Path) -> str | None:
    """Of a BrainVision header, what is wrong with the files that it points to, and how to mend it; else None.

    A file that is not there, or another recording's although one of the header's own name lies beside it.
    """
    for number, word, named in partners(path):
        own = path.with_suffix(Path(named).suffix)
        if (path.parent / named).is_file():
            if Path(named).stem != path.stem and own.is_file():
                return (
                    f"line {number} of the header points to {named}, and {own.name} lies beside it: write "
                    f"{word}={own.name} there, or rename {own.name}"
                )
            continue
        beside = [path.with_suffix(suffix) for suffix in _PARTNERS[word] if path.with_suffix(suffix).is_file()]
        mend = (
            f"write {word}={beside[0].name} there, or rename {beside[0].name} to {named}"
            if beside
            else f"put {named} beside it"
        )
        return f"line {number} of the header points to {named}, which is not in its folder: {mend}"
    return None


def partners(path: Path) -> Iterator[tuple[int, str, str]]:
    """The files that a BrainVision header points to: (line, DataFile or MarkerFile, the name that stands there)."""
    if path.suffix.lower() != ".vhdr" or not path.is_file():
        return
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        key, _, value = line.partition(b"=")
        if (word := key.strip().decode("latin-1")) in _PARTNERS:
            yield number, word, value.strip().decode("utf-8", errors="replace").replace("$b", path.stem)


def _cause(path: Path, reason: object) -> str:
    detail = " ".join(str(reason).split())[:200]
    if partner := missing_partner(path):
        return partner
    if isinstance(reason, PermissionError):
        return f"{path} may not be read by this user: set its permissions"
    if "number of trials is" in detail or "read_epochs" in detail or "No raw data" in detail:
        return "the file holds epochs, no continuous recording: export continuous data"
    if match := _PACKAGE.search(detail):
        package = next(group for group in match.groups() if group).split(".")[0]
        return f"reading it needs the package {package}, which is not installed: pip install {package}"
    if isinstance(reason, FileNotFoundError):
        return f"{reason.filename or detail} is not there, which {path.name} points to: put it beside {path.name}"
    kind = f"{type(reason).__name__}: " if isinstance(reason, Exception) else ""
    return (
        f"the file cannot be read to its end ({kind}{detail}): copy {path} again from where it was recorded, export it "
        "again, or leave it out"
    )
