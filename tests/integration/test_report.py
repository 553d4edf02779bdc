"""Reports of runs: figures that can be recomputed, comparisons with their uncertainty, pages that never crash."""

import csv
import io
import json
import re
import shutil
import statistics
from pathlib import Path
from urllib.parse import unquote

import pytest
from scipy import stats

from app.common.errors import FedgeoError
from app.config.compose import load
from app.reports import run_report, sweep_report
from app.reports.arms import arms, pairs, show
from app.reports.overview import Overview
from app.reports.paper_layouts import LAYOUTS, Layout, spots
from app.reports.paper_tables import as_table, reproduced
from app.runs.reader import find, flatten, read
from scripts import report as script
from tests.made_runs import make_run
from tests.running import drawing

SCORES = {"none": (0.50, 0.56, 0.61), "repeat": (0.80, 0.79, 0.84), "ggeur": (0.83, 0.80, 0.86)}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, three augmentations, three seeds; and a run that failed, one that broke off, a damaged one."""
    folder = tmp_path_factory.mktemp("swept")
    for place, method in enumerate(("fedavg", "scaffold")):
        for augmentation, finals in SCORES.items():
            for seed, final in enumerate(finals, 1):
                words = (f"method={method}", f"augmentation={augmentation}", f"seed={seed}")
                score = final - 0.01 * place * (seed % 3)
                make_run(folder / ",".join(words), *words, scores=(0.1, score), domains=("north", "south"))
    make_run(folder / "failed", "seed=4", scores=(), error="10 of 10 clients failed <b>& more</b>")
    make_run(folder / "broken", "seed=5")
    (folder / "broken" / "summary.json").unlink()
    make_run(folder / "damaged", "seed=6")
    (folder / "damaged" / "config.yaml").write_text("seed: [1,\n")
    return folder


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(script.render([folder], "csv", table, None))))


def test_every_figure_is_that_of_the_run_directories_it_names(swept: Path) -> None:
    told = rows(swept, "results")
    assert len(told) == 6
    for row in told:
        summaries = [json.loads((swept / name / "summary.json").read_text()) for name in row["runs"].split()]
        assert {(s["method"], s["augmentation"]) for s in summaries} == {(row["method"], row["augmentation"])}
        for column, key in (("accuracy", "final"), ("STD_over_domains", "std_over_domains"), ("macro_F1", "f1_macro")):
            values = [s[key] for s in summaries]
            assert float(row[f"{column}_mean"]) == pytest.approx(statistics.fmean(values))
            assert float(row[f"{column}_std"]) == pytest.approx(statistics.stdev(values))
        assert int(row["seeds"]) == len(summaries) == 3


def test_pairs_are_those_that_differ_in_one_thing_with_the_interval_of_a_paired_t_test(swept: Path) -> None:
    found = pairs(arms(find([swept])))
    names = {(str(p.arm.choices[p.key]), str(p.other.choices[p.key])) for p in found}
    assert names == {("repeat", "none"), ("ggeur", "none"), ("ggeur", "repeat"), ("scaffold", "fedavg")}
    assert len(found) == 2 * 3 + 3
    for pair in found:
        mine = [pair.arm.by_seed[seed].figure("final") for seed in (1, 2, 3)]
        theirs = [pair.other.by_seed[seed].figure("final") for seed in (1, 2, 3)]
        test = stats.ttest_rel(mine, theirs)
        low, high = test.confidence_interval(0.95)
        assert pair.half_width is not None
        assert (pair.mean - pair.half_width, pair.mean + pair.half_width) == pytest.approx((low, high))
        assert pair.wins == sum(a > b for a, b in zip(mine, theirs, strict=True))


def test_any_arm_can_be_what_the_others_are_compared_with(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox", "scaffold"):
        for seed in (1, 2):
            make_run(tmp_path / f"{method}{seed}", f"method={method}", f"seed={seed}")
    told = pairs(arms(find([tmp_path])), against="scaffold")
    assert [(pair.arm.label, pair.other.label) for pair in told] == [("fedavg", "scaffold"), ("fedprox", "scaffold")]
    with pytest.raises(FedgeoError, match="--against moon: no run has it; they have fedavg, fedprox, scaffold"):
        pairs(arms(find([tmp_path])), against="moon")


def test_one_seed_has_neither_deviation_nor_interval(tmp_path: Path) -> None:
    for augmentation in ("none", "ggeur"):
        make_run(tmp_path / augmentation, f"augmentation={augmentation}")
    (pair,) = pairs(arms(find([tmp_path])))
    assert pair.half_width is None
    assert {row["accuracy_std"] for row in rows(tmp_path, "results")} == {""}
    assert script.render([tmp_path], "text", "results", None).count("±") == 1  # in the title
    assert rows(tmp_path, "pairs")[0]["from"] == ""


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv", "html"])
def test_a_report_made_twice_is_the_same_file(swept: Path, tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        assert script.main([str(swept), "--format", form, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_figure_fits_a_phone_until_it_is_tapped(swept: Path) -> None:
    with drawing():
        page = sweep_report.document(Overview(swept, find([swept])))
    assert page.count("<figure>") == page.count('<figure><label><input type="checkbox"') > 0
    assert "figure input:checked + img" in page and "<script" not in page


def test_every_run_directory_is_linked_to_a_report(swept: Path) -> None:
    page = sweep_report.document(Overview(swept, find([swept])))
    linked = {(swept / unquote(link)).parent for link in re.findall(r'href="([^"]+)"', page)}
    assert linked == {run.path for run in find([swept]) if (run.path / "report.html").is_file()}


def test_runs_that_did_not_complete_are_listed_and_count_nowhere(swept: Path) -> None:
    told = {row["run_directory"]: row for row in rows(swept, "runs")}
    assert len(told) == 18 + 3
    for name, status in (("failed", "failed"), ("broken", "unfinished"), ("damaged", "damaged")):
        assert (told[name]["status"], told[name]["arm"]) == (status, "")
    page = sweep_report.document(Overview(swept, find([swept])))
    assert "3 runs did not complete" in page and "18 of 21 runs completed" in page
    assert "<b>&" not in page and "&lt;b&gt;&amp; more" in page


def test_nothing_but_failures_still_makes_a_report(tmp_path: Path) -> None:
    make_run(tmp_path / "a", scores=(), error="out of memory")
    for form in ("text", "markdown", "latex", "html"):
        assert "out of memory" in script.render([tmp_path], form, None, None)
    with pytest.raises(FedgeoError, match="no run has anything for the table results"):
        script.render([tmp_path], "text", "results", None)


@pytest.mark.parametrize(
    "lost", ["rounds.jsonl", "versions.json", "figures/curves.png", "confusion.json", "report.html"]
)
def test_a_missing_file_of_a_run_is_no_crash(tmp_path: Path, lost: str) -> None:
    with drawing():
        make_run(tmp_path / "a", "seed=1")
    make_run(tmp_path / "b", "seed=2", "augmentation=none")
    (tmp_path / "a" / lost).unlink()
    assert "2 of 2 runs completed" in sweep_report.document(Overview(tmp_path, find([tmp_path])))


def test_a_summary_of_nulls_is_no_crash(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    keep = {"status", "metric", "experiment", "method", "augmentation", "seed"}
    (folder / "summary.json").write_text(json.dumps({k: v if k in keep else None for k, v in summary.items()}))
    assert "1 of 1 runs completed" in sweep_report.document(Overview(tmp_path, find([tmp_path])))
    assert run_report.write(folder, read(folder).summary).is_file()


def test_the_page_is_whole_and_its_links_lead_to_runs(swept: Path) -> None:
    with drawing():
        path = sweep_report.write(swept)
    page = path.read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    pictures = [source for source in sources if source.startswith("data:image/png;base64,")]
    links = [source for source in sources if source not in pictures]
    assert len(pictures) >= 5 and len(links) == 18 + 3
    assert all((swept / link.replace("%2C", ",").replace("%3D", "=")).is_file() for link in links)
    assert "http" not in page and "width=device-width" in page


def test_a_page_elsewhere_links_from_where_it_lies(swept: Path, tmp_path: Path) -> None:
    copy = tmp_path / "all" / "sweep"
    shutil.copytree(swept, copy)
    assert script.main([str(copy), "--format", "html", "--out", str(tmp_path / "all" / "page.html")]) == 0
    assert 'href="sweep/failed/report.html"' in (tmp_path / "all" / "page.html").read_text()


def test_arms_are_told_apart_by_the_fewest_keys(tmp_path: Path) -> None:
    for rate in (0.1, 0.3):
        for augmentation in ("none", "ggeur"):
            words = (f"training.lr={rate}", f"augmentation={augmentation}")
            make_run(tmp_path / f"{rate}{augmentation}", *words)
    labels = [arm.label for arm in arms(find([tmp_path]))]
    assert labels == [f"{a} training.lr={rate}" for a in ("none", "ggeur") for rate in (0.1, 0.3)]


def test_a_folder_that_is_not_there_or_holds_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(tmp_path / "nowhere")]) == 2
    assert script.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "nowhere: no such folder" in said and "there is no run directory here" in said


# --- the papers' tables ---

PAPER = ("experiment=cifar100", "variant=paper", "federation.beta=0.5")


def cells(folder: Path) -> dict[str, dict[str, str]]:
    return {f"{row['row']}, {row['column']}": row for row in rows(folder, "papers")}


def test_the_papers_number_stands_beside_ours_where_all_settings_agree(tmp_path: Path) -> None:
    for seed, final in ((1, 0.81), (2, 0.83)):
        words = (*PAPER, "method=fedavg", "augmentation=none", f"seed={seed}", "engine=inprocess")
        make_run(tmp_path / f"{seed}", *words, scores=[final])
    make_run(tmp_path / "other", *PAPER, "augmentation=ggeur", "training.lr=0.05", scores=[0.84])
    told = cells(tmp_path)
    same = told["FedAvg, CIFAR-100 β=0.5"]
    assert float(same["ours_mean"]) == pytest.approx(82.0) and float(same["paper"]) == pytest.approx(81.41)
    assert float(same["difference"]) == pytest.approx(0.59) and same["runs"] == "1 2"
    other = told["FedAvg + GGEUR, CIFAR-100 β=0.5"]
    assert (other["paper"], other["difference"]) == ("", "")
    assert other["settings_that_differ"] == "training.lr=0.05 (paper 0.1)"
    text = script.render([tmp_path], "text", "papers", None)
    assert "81.41" in text and "training.lr 0.05 (the paper's: 0.1)" in text and "83.31" not in text


def test_the_papers_number_needs_embeddings_of_its_unit_and_its_coefficients(tmp_path: Path) -> None:
    words = ("experiment=pacs", "variant=paper", "method=feddyn", "augmentation=none")
    domains = ("photo", "art_painting", "cartoon", "sketch")
    make_run(tmp_path / "same", *words, domains=domains)
    assert cells(tmp_path)["FedDyn, AVG"]["paper"] == "97.58"
    make_run(tmp_path / "other" / "a", *words, "encoder.normalise=l2", domains=domains)
    assert cells(tmp_path / "other")["FedDyn, AVG"]["settings_that_differ"] == "encoder.normalise=l2 (paper none)"
    assert cells(tmp_path / "other")["FedDyn, AVG"]["paper"] == ""
    make_run(tmp_path / "third" / "a", *words, "method.alpha=0.001", domains=domains)
    assert cells(tmp_path / "third")["FedDyn, AVG"]["settings_that_differ"] == "method.alpha=0.001 (paper 0.5)"


def test_the_nearest_settings_fill_a_cell_and_the_rest_is_told(tmp_path: Path) -> None:
    for name, words in (("near", ("training.lr=0.05",)), ("far", ("training.lr=0.05", "training.epochs=1"))):
        make_run(tmp_path / name, *PAPER, "augmentation=none", *words)
    assert cells(tmp_path)["FedAvg, CIFAR-100 β=0.5"]["runs"] == "near"
    assert "nearest to the paper's" in script.render([tmp_path], "text", "papers", None)


def test_domains_and_seconds_have_their_layouts(tmp_path: Path) -> None:
    words = ("experiment=digits", "variant=paper", "method=moon", "augmentation=none")
    make_run(tmp_path / "a", *words, scores=(0.7, 0.8), domains=("mnist", "usps", "svhn", "syn"))
    made = {layout.name: as_table(layout, found) for layout, found in reproduced(arms(find([tmp_path])))}
    assert set(made) == {"ggeur-4", "ggeur-11"}
    ours, theirs, gap = made["ggeur-4"].rows
    assert [made["ggeur-4"].show(cell, 100) for cell in ours[1:5]] == ["75.00", "73.00", "71.00", "69.00"]
    assert [made["ggeur-4"].show(cell, 100) for cell in theirs[1:]] == [
        *("75.64", "73.09", "38.83", "52.74"),
        *("60.07", "15.14"),
    ]
    assert made["ggeur-4"].show(gap[1], 100) == "-0.64"
    assert made["ggeur-11"].words(made["ggeur-11"].rows[0]) == ["MOON", "0.75"]


def test_the_digits_table_is_consistent_in_itself() -> None:
    """AVG and STD of the paper's own rows are mean and population deviation of its domains: no slip in copying."""
    layout = next(layout for layout in LAYOUTS if layout.name == "ggeur-4")
    for row in layout.rows:
        *domains, average, deviation = (float(number) for number in row.numbers if isinstance(number, float))
        assert statistics.fmean(domains) == pytest.approx(average, abs=0.0051), row.label
        assert statistics.pstdev(domains) == pytest.approx(deviation, abs=0.0061), row.label


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_cell_of_every_layout_is_a_configuration_that_can_be_run(layout: Layout) -> None:
    for spot in {spot.overrides: spot for spot in spots(layout)}.values():
        flat = dict(flatten(load((*spot.overrides, "variant=paper")).model_dump(mode="json")))
        assert all(show(flat[key]) == value for key, value in spot.known_by.items()), spot.overrides
