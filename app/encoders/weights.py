"""A network's weights: fetched or from a file, the same in every process, with one line where they are missing."""

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..common.errors import FedgeoError

log = logging.getLogger(__name__)


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Weights that nothing is loaded into are the same in every process; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


@contextmanager
def fetching(what: str | None) -> Iterator[None]:
    """Tells that the weights of ``what``, where it is any, are looked for, in place of the libraries' own lines.

    Those are a dozen retries where there is no network, each twice, which the error sums up.
    """
    if what is not None:
        log.info("%s: looking for the weights, which are fetched where they are not on this machine", what)
    hub, root = logging.getLogger("huggingface_hub"), logging.getLogger()
    level = hub.level
    hub.setLevel(logging.ERROR)
    root.addFilter(_nothing)  # what is logged on it directly, as open_clip does
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        hub.setLevel(level)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def checkpoint_file(path: Path | str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FedgeoError(f"encoder.checkpoint: no such file: {file}")
    return file


def alike(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f": did you mean {' or '.join(near)}?" if near else ": see its list_models()"


def weights_missing(what: str, place: str, fault: Exception) -> FedgeoError:
    return FedgeoError(
        f"{what}: the weights are not on this machine and could not be fetched ({first_line(fault)}): fetch them from "
        f"{place} where there is a network, copy the file here and set encoder.checkpoint to it"
    )


def unfit(model: str, file: str, fault: Exception) -> FedgeoError:
    return FedgeoError(f"{file}: not a checkpoint of {model} ({first_line(fault)}): give the model it was made for")


def first_line(fault: Exception) -> str:
    text = " ".join(str(fault).split())
    return text if len(text) <= 200 else f"{text[:200].rpartition(' ')[0] or text[:200]} ..."
