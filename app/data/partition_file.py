"""A partition and its split as the text that is saved with a run, and read back for the same data only."""

import hashlib
import json
from typing import Any

import numpy as np

from ..common.errors import FedgeoError
from .partition import Partition, Split, domain_names
from .source import Source

FORMAT = 1


def to_json(partition: Partition, source: Source, split: Split) -> str:
    """The partition and the split it was cut from, with what identifies the source, as JSON text.

    ``counts`` (clients x classes) is there for whoever reads the file without the data.
    """
    return _dump(
        {
            "format": FORMAT,
            "kind": partition.kind,
            "seed": partition.seed,
            "beta": partition.beta,
            "source": _identity(source),
            "split": {name: getattr(split, name).tolist() for name in ("train", "val", "test")},
            "counts": partition.counts(source.labels, len(source.classes)).tolist(),
            "clients": [
                {"domain": domain, "rows": rows.tolist()}
                for domain, rows in zip(partition.domains, partition.clients, strict=True)
            ],
        }
    )


def from_json(text: str, source: Source) -> tuple[Partition, Split]:
    """The partition and split that ``to_json`` wrote, exactly.

    Raises FedgeoError if they are not for ``source``: the number of rows, the class and domain names in
    order, and a digest of every row's label and domain must agree; and if clients are not disjoint, are
    empty or hold other than training rows of the split.
    """
    try:
        saved = json.loads(text)
        if saved["format"] != FORMAT:
            raise _fault(f"has format {saved['format']}, this version reads {FORMAT}")
        _check_identity(saved["source"], _identity(source))
        split = Split(*(_rows(saved["split"][name], source, name) for name in ("train", "val", "test")))
        clients = tuple(_rows(client["rows"], source, f"client {k}") for k, client in enumerate(saved["clients"]))
        partition = Partition(
            clients, domain_names(source, clients), str(saved["kind"]), int(saved["seed"]), saved["beta"]
        )
    except FedgeoError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise _fault(f"is no saved partition ({type(error).__name__}: {error})") from error
    _check_disjoint({"train": split.train, "val": split.val, "test": split.test})
    _check_disjoint({f"client {k}": rows for k, rows in enumerate(clients)})
    if not clients:
        raise _fault("has no clients")
    for k, rows in enumerate(clients):
        if not len(rows):
            domain = saved["clients"][k].get("domain")
            where = f" ({domain})" if domain else ""
            raise _fault(f"gives client {k}{where} no rows")
    if not np.isin(np.concatenate(clients), split.train).all():
        raise _fault("has clients with rows outside its training split")
    return partition, split


def _identity(source: Source) -> dict[str, Any]:
    content = np.stack([source.labels, source.domain]).astype("<i8").tobytes()
    return {
        "name": source.name,
        "rows": len(source),
        "classes": list(source.classes),
        "domains": list(source.domains),
        "labels_sha256": hashlib.sha256(content).hexdigest(),
    }


def _fault(what: str) -> FedgeoError:
    return FedgeoError(f"federation.partition_file {what}; give the file saved with a run on this data, or null")


def _check_identity(saved: dict[str, Any], here: dict[str, Any]) -> None:
    if saved["rows"] != here["rows"]:
        raise _fault(f"is for {saved['rows']} samples of {saved['name']}, the data here has {here['rows']}")
    for key in ("classes", "domains"):
        if saved[key] != here[key]:
            pairs = zip([*saved[key], "(none)"], [*here[key], "(none)"], strict=False)
            there, instead = next((a, b) for a, b in pairs if a != b)
            raise _fault(
                f"is for {len(saved[key])} {key}, the data here has {len(here[key])}; the first difference "
                f"is {there} there, {instead} here"
            )
    if saved["labels_sha256"] != here["labels_sha256"]:
        raise _fault("is for the same number of samples, but their labels or domains differ or are in another order")


def _rows(values: list[int], source: Source, owner: str) -> np.ndarray:
    rows = np.asarray(values)
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    if rows.dtype.kind != "i" or rows.ndim != 1 or rows.min() < 0 or rows.max() >= len(source):
        raise _fault(f"gives {owner} rows that are not integers from 0 to {len(source) - 1}")
    return np.sort(rows.astype(np.int64))


def _check_disjoint(parts: dict[str, np.ndarray]) -> None:
    owner: dict[int, str] = {}
    for name, rows in parts.items():
        for row in rows.tolist():
            if row in owner:
                raise _fault(f"gives row {row} to {owner[row]} and to {name}")
            owner[row] = name


def _dump(content: dict[str, Any]) -> str:
    """JSON with a line for each key and, under ``clients``, for each client, so that a diff can be read."""
    lines = [f' "{key}": {json.dumps(value)}' for key, value in content.items() if key != "clients"]
    clients = ",\n".join(f"  {json.dumps(client)}" for client in content["clients"])
    return "{\n" + ",\n".join([*lines, f' "clients": [\n{clients}\n ]']) + "\n}\n"
