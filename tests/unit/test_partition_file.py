"""Saved partitions: given back exactly, and refused where they are for other data or damaged."""

import json

import numpy as np
import pytest

from app.common.errors import FedgeoError
from app.data import partition_file
from app.data.partition import KINDS, Partition, Split, partition, split
from app.data.source import Source
from tests.sources import random_source, same


@pytest.fixture
def saved() -> tuple[Source, Partition, Split, str]:
    source = random_source(300, 5, 3)
    parts = split(source, test_fraction=0.2, val_fraction=0.1, seed=0)
    made = partition(source, parts.train, kind="domain_dirichlet", beta=0.1, seed=7)
    return source, made, parts, partition_file.to_json(made, source, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_is_exact(kind: str) -> None:
    source = random_source(300, 5, 3)
    parts = split(source, test_fraction=0.2, val_fraction=0.0, seed=0)
    made = partition(source, parts.train, kind=kind, clients=9, beta=0.1, seed=7)
    text = partition_file.to_json(made, source, parts)
    back, parts_back = partition_file.from_json(text, source)
    assert same(made, back) and all(rows.dtype == np.int64 for rows in back.clients)
    assert (back.domains, back.kind, back.seed, back.beta) == (made.domains, made.kind, made.seed, made.beta)
    for name in ("train", "val", "test"):
        assert np.array_equal(getattr(parts, name), getattr(parts_back, name))
    assert partition_file.to_json(back, source, parts_back) == text
    assert json.loads(text)["counts"] == made.counts(source.labels, 5).tolist()


def test_a_file_for_other_data_is_refused(saved: tuple[Source, Partition, Split, str]) -> None:
    source, _, _, text = saved

    def changed(**fields: object) -> Source:
        return Source(**{**vars(source), **fields})

    swapped = source.labels.copy()
    swapped[[0, 1]] = swapped[0] + 1 - swapped[0], 0
    cases = [
        (random_source(299, 5, 3), "is for 300 samples of trial, the data here has 299"),
        (changed(classes=("class0", "dog", "class2", "class3", "class4")), "class1 there, dog here"),
        (changed(classes=(*source.classes, "extra")), r"5 classes, .* has 6; .* \(none\) there, extra here"),
        (changed(domains=("domain0", "domain1", "photo")), "domain2 there, photo here"),
        (changed(labels=swapped), "labels or domains differ"),
        (changed(domain=source.domain[::-1]), "labels or domains differ"),
    ]
    for other, message in cases:
        with pytest.raises(FedgeoError, match=f"federation.partition_file .*{message}"):
            partition_file.from_json(text, other)


def test_a_damaged_file_is_refused(saved: tuple[Source, Partition, Split, str]) -> None:
    source, made, parts, text = saved

    def damaged(change: str, value: object) -> str:
        content = json.loads(text)
        if change == "rows":
            content["clients"][1]["rows"] = value
        else:
            content[change] = value
        return json.dumps(content)

    row = int(made.clients[0][0])
    cases = [
        (text[:500], "is no saved partition"),
        ("[]", "is no saved partition"),
        (damaged("format", 99), "has format 99"),
        (damaged("split", {"train": []}), "is no saved partition"),
        (damaged("clients", []), "has no clients"),
        (damaged("rows", [row]), f"gives row {row} to client 0 and to client 1"),
        (damaged("rows", [int(parts.test[0])]), "outside its training split"),
        (damaged("rows", []), r"gives client 1 \(domain1\) no rows"),
        (damaged("rows", [300]), "client 1 rows that are not integers from 0 to 299"),
        (damaged("rows", [0.5]), "client 1 rows that are not integers"),
        (damaged("rows", ["a"]), "client 1 rows that are not integers"),
        (damaged("rows", [[0], [1, 2]]), "is no saved partition"),
        (damaged("seed", "x"), "is no saved partition"),
    ]
    for bad, message in cases:
        with pytest.raises(FedgeoError, match=f"federation.partition_file .*{message}"):
            partition_file.from_json(bad, source)
