"""The benchmark: what it prints, and that it says no ratio where the results differ."""

import json

import pytest

from app.common.errors import FedgeoError
from scripts import benchmark
from scripts.benchmark import Pair
from scripts.benchmarks import cohort, engines


def nothing() -> None:
    pass


def differ() -> None:
    raise AssertionError("1 is not 2")


def test_spdnet_prints_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spd_learn")
    pairs = [benchmark.spdnet()[0], Pair("made up", lambda: nothing, lambda: nothing, nothing, memory=lambda: (1, 2))]
    monkeypatch.setitem(benchmark.BENCHMARKS, "spdnet", lambda: pairs)
    assert benchmark.main(["spdnet", "--json", "--pairs", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "ours_s", "reference_s", "ratio", "ours_mb", "reference_mb", "setting"} <= set(found)
    assert found["name"] == "spdnet" and len(found["settings"]) == 2
    assert found["ratio"] == min(s["ratio"] for s in found["settings"])
    assert all(found[key] > 0 for key in ("ours_s", "reference_s", "ratio", "ours_mb", "reference_mb"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cohort", "statistics", "augment", "aggregate", "overhead"])
def test_both_sides_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cohort, engines):  # a fifth of the clients
        monkeypatch.setattr(module, "CLIENTS", 20)
    monkeypatch.setattr(engines, "TRAINED", 20 * 500)
    pairs = benchmark.BENCHMARKS[name]()
    assert pairs
    for pair in pairs:
        pair.agree()  # raises where they do not


def test_results_that_differ_have_no_ratio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [Pair("made up", lambda: nothing, lambda: nothing, differ)]
    monkeypatch.setitem(benchmark.BENCHMARKS, "spdnet", lambda: pairs)
    assert benchmark.main(["spdnet", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "the results differ, so there is no ratio: 1 is not 2" in said.err


def test_sides_are_timed_in_turn_after_warming_up() -> None:
    calls: list[str] = []
    pair = Pair("made up", lambda: lambda: calls.append("ours"), lambda: lambda: calls.append("reference"), nothing)
    benchmark.times(pair, 5)
    assert calls[2 * pair.warm_up :] == ["ours", "reference"] * 5


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["spdnet", "--pairs", "4"])


def test_a_missing_reference_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking() -> list[Pair]:
        raise FedgeoError("spd_learn is not installed: pip install '.[dev]'")

    monkeypatch.setitem(benchmark.BENCHMARKS, "spdnet", lacking)
    assert benchmark.main(["spdnet"]) == 1
    assert "pip install" in capsys.readouterr().err
