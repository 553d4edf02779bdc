"""Figures: files of the expected size, the same bytes each time, whatever the numbers and names are."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.reports import figures

NAMES = ["dog", "$x_{y", "house of a very long name that goes on and on", "_hidden", "50 % & more", ""]
CLASSES = NAMES[:4]
NAN = float("nan")


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A warning (text that does not fit, a logarithm of 0) is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(rounds: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "round": r + 1,
            "accuracy": a,
            "val_accuracy": a - 0.05,
            "f1_macro": a,
            "loss": 1 - a,
            "train_loss": 0.9 - a,
        }
        for r, a in enumerate(np.sort(rng.random(rounds)).tolist())
    ]


def some_counts(clients: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).poisson(0.5, (clients, classes)) * 40


DRAWN: dict[str, Callable[[Path], None]] = {
    "curves": lambda p: figures.curves(run(40), p),
    "compare": lambda p: figures.curves_compare({"none": [run(30, s) for s in range(3)], "ggeur": [run(30)]}, p),
    "labels": lambda p: figures.label_distribution(some_counts(10, 4), CLASSES, p),
    "similarity": lambda p: figures.similarity_heatmap(np.random.default_rng(0).random((4, 4)), CLASSES, CLASSES, p),
    "confusion": lambda p: figures.confusion(some_counts(4, 4), CLASSES, p),
    "bars": lambda p: figures.domain_bars({"photo": 0.9, "sketch": 0.5}, p),
}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("name", DRAWN)
def test_bytes_depend_on_the_content_alone(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "new" / "folder" / "a.png", tmp_path / "b.png"
    DRAWN[name](first)
    DRAWN["bars" if name != "bars" else "curves"](tmp_path / "between.png")
    DRAWN[name](second)
    assert first.read_bytes() == second.read_bytes()
    with Image.open(first) as image:
        assert image.format == "PNG" and not {"Software", "Creation Time"} & set(image.info)
    shown = pixels(first)
    assert 400 <= shown.shape[0] <= 1200 and 500 <= shown.shape[1] <= 1400
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 50  # something is drawn


def test_size_of_curves_is_eight_inches_at_150_dots(tmp_path: Path) -> None:
    figures.curves(run(5), tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape == (510, 1200, 3)


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        run(1),
        [{"round": 1}],
        [{"round": 1, "accuracy": None, "loss": NAN}],
        [
            {"round": 0, "accuracy": 0.1, "loss": float("inf")},
            *run(3),
            {"round": 4, "accuracy": NAN, "loss": NAN},
        ],
        run(400),
    ],
    ids=["none", "one", "no keys", "missing", "diverged", "many"],
)
def test_curves_of_any_run(rounds: list[dict[str, Any]], tmp_path: Path) -> None:
    figures.curves(rounds, tmp_path / "a.png")
    figures.curves_compare({"a": [rounds, rounds], "b": []}, tmp_path / "b.png", metric="f1_macro")
    assert pixels(tmp_path / "a.png").shape == (510, 1200, 3)
    assert pixels(tmp_path / "b.png").shape == (600, 1125, 3)


def test_a_gap_is_left_where_a_value_is_missing() -> None:
    x, y = figures._series([{"round": 1, "loss": 2.0}, {"round": 2}, {"round": 3, "loss": None}], "loss")
    assert x.tolist() == [1, 2, 3]
    assert np.array_equal(y, [2.0, NAN, NAN], equal_nan=True)


def test_runs_are_compared_over_the_rounds_they_share() -> None:
    x, values = figures._aligned([run(5, 0), run(3, 1)], "accuracy")
    assert x.tolist() == [1, 2, 3]
    assert values.tolist() == [[line["accuracy"] for line in run(n, s)[:3]] for n, s in ((5, 0), (3, 1))]


def test_looks_of_lines_differ() -> None:
    looks = [figures._line(i, 100) for i in range(32)]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == 32
    assert len({figures._line(i, 100)["linestyle"] for i in range(4)}) == 4


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (1, 6), (6, 1), (4, 65), (100, 100), (500, 10), (10, 200)])
def test_label_distribution_fits_any_number_of_clients_and_classes(clients: int, classes: int, tmp_path: Path) -> None:
    names = [NAMES[c % 6] for c in range(classes)]
    figures.label_distribution(some_counts(clients, classes), names, tmp_path / "a.png", [NAMES[2]] * clients)
    height, width, _ = pixels(tmp_path / "a.png").shape
    assert max(height, width) <= 17 * figures.DPI


def test_a_bubble_is_drawn_for_each_held_class_and_none_for_the_others(tmp_path: Path) -> None:
    def ink(counts: list[list[int]]) -> int:
        figures.label_distribution(np.array(counts), ["a", "b"], tmp_path / "a.png", ["c", "d"])
        shown = pixels(tmp_path / "a.png")[:, : -int(1.4 * figures.DPI)].astype(int)  # without the colour bar
        return int((np.ptp(shown, axis=2) > 40).sum())

    assert ink([[0, 0], [0, 0]]) == 0
    one = ink([[100, 0], [0, 0]])
    assert one > 1000
    assert ink([[100, 0], [0, 100]]) == pytest.approx(2 * one, rel=0.02)
    assert ink([[100, 25], [0, 0]]) == pytest.approx(1.25 * one, rel=0.05)  # the area is the count


@pytest.mark.parametrize("size", [1, 2, 20, 120])
def test_matrices_of_any_size(size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [NAMES[c % 6] for c in range(size)]
    similarity = rng.random((size, size)) * 5
    similarity[0] = NAN
    figures.similarity_heatmap(similarity, names, names, tmp_path / "a.png", "art $", NAMES[2])
    figures.confusion(rng.integers(0, 2, (size, size)) * 0, names, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert max(pixels(tmp_path / name).shape) <= 17 * figures.DPI


def test_similarity_between_different_numbers_of_classes(tmp_path: Path) -> None:
    figures.similarity_heatmap(np.ones((2, 6)), CLASSES[:2], NAMES, tmp_path / "a.png")
    height, width, _ = pixels(tmp_path / "a.png").shape
    assert width > height


def test_an_absent_class_is_grey(tmp_path: Path) -> None:
    grey = np.array([0xD9, 0xD9, 0xD9])

    def grey_pixels(matrix: np.ndarray) -> int:
        figures.confusion(matrix, ["a", "b", "c"], tmp_path / "a.png")
        return int((pixels(tmp_path / "a.png") == grey).all(axis=2).sum())

    assert grey_pixels(np.eye(3, dtype=int)) < 200
    assert grey_pixels(np.diag([1, 0, 1])) > 5000


@pytest.mark.parametrize(
    "by_domain",
    [
        {"photo": 0.9},
        {"photo": NAN, "sketch": 0.0},
        {"ggeur": {"photo": 0.9, "sketch": 0.7}, "none": {"photo": 0.8}},
        {"ggeur": {"photo": [0.9, 0.8, 0.85]}, "none": {"photo": [0.8]}},
        {f"method {i}": {name: [0.5, 0.6] for name in NAMES} for i in range(12)},
        {f"S{i:03d}": 0.5 for i in range(109)},
    ],
    ids=["one", "nan", "a domain lacking", "runs", "many methods", "many domains"],
)
def test_bars_for_any_domains(by_domain: dict[str, Any], tmp_path: Path) -> None:
    figures.domain_bars(by_domain, tmp_path / "a.png", metric="f1_macro")
    height, width, _ = pixels(tmp_path / "a.png").shape
    assert height == 540 and 500 <= width <= 17 * figures.DPI


def test_long_names_keep_both_ends() -> None:
    short = figures._short("house of a very long name that goes on and on")
    assert len(short) == 28 and short.startswith("house of") and short.endswith("n and on")
    assert figures._short("dog") == "dog"
