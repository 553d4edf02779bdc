"""Image scenarios from data to table: embeddings and folders of images, Algorithm 2, figures, and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.data.images import folders
from scripts import embed
from scripts import run as run_script
from tests.running import drawing, rounds, run_in_process

CLASSES, DIMENSION = 3, 8


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of 90, 120 and 150 samples; the classes' means and shapes differ, and are alike at all sites."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(CLASSES, DIMENSION))
    roots = [np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0] * 0.6 ** np.arange(DIMENSION) for _ in means]
    arrays: dict[str, Any] = {"classes": np.array(["ant", "bee", "cow"])}
    for site, number in (("north", 90), ("south", 120), ("west", 150)):
        labels = np.arange(number) % CLASSES
        noise = [roots[label] @ rng.normal(size=DIMENSION) for label in labels]
        arrays[f"{site}_X"] = (means[labels] + np.array(noise) + 0.3 * rng.normal(size=DIMENSION)).astype(np.float32)
        arrays[f"{site}_y"] = labels
    path = tmp_path_factory.mktemp("features") / "sites.npz"
    np.savez(path, **arrays)
    return path


def options(path: Path, *more: str) -> tuple[str, ...]:
    return (
        *("experiment=pacs", "data=features", f"data.path={path}", "federation.partition=domain_dirichlet"),
        *("federation.beta=0.3", "federation.fraction=1.0", "federation.rounds=2", "training.epochs=1"),
        *("augmentation.target=40", "augmentation.per_prototype=20", *more),
    )


def drawn(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "augmentation.json").read_text())


@pytest.mark.parametrize("clients", [3, 5])
@pytest.mark.parametrize("kind", ["ggeur", "repeat"])
def test_algorithm_2_counts(embeddings: Path, tmp_path: Path, kind: str, clients: int) -> None:
    """A held class is filled to the target; each class gets more for every other site's client that holds it."""
    words = options(embeddings, f"augmentation={kind}", "variant=paper", f"federation.clients={clients}")
    summary = run_in_process(tmp_path / "run", *words)
    saved = json.loads((tmp_path / "run" / "partition.json").read_text())
    held = np.array(saved["counts"])
    sites = [client["domain"] for client in saved["clients"]]
    assert len(set(sites)) == 3 and (held == 0).any()
    expected = np.where(held > 0, np.maximum(held, 40), 0)
    for k in range(clients):
        for other in range(clients):
            if sites[other] != sites[k]:
                expected[k] += 20 * (held[other] > 0)
    told = drawn(tmp_path / "run")
    assert [client["total"] for client in told["clients"]] == expected.tolist()
    assert [client["held"] for client in told["clients"]] == held.tolist()
    assert [client["domain"] for client in told["clients"]] == sites
    assert summary["added_samples"] == told["added"] == expected.sum() - held.sum()
    assert (summary["perturbation_rms"] > 0) == (kind == "ggeur")
    assert summary["variant"] == "paper"


def test_the_gaussian_variant_gives_everybody_every_class(embeddings: Path, tmp_path: Path) -> None:
    """So that no class is absent, and each is filled to the target; plain Dirichlet leaves some out."""
    small = ("federation.clients=6", "federation.rounds=1", "training.epochs=1", "augmentation.target=30")
    held = {}
    for variant in ("gaussian", "paper"):
        words = ("experiment=cifar10", "data=features", f"data.path={embeddings}", f"variant={variant}", *small)
        run_in_process(tmp_path / variant, *words)
        clients = drawn(tmp_path / variant)["clients"]
        held[variant] = np.array([client["held"] for client in clients])
        totals = np.array([client["total"] for client in clients])
        assert np.array_equal(totals, np.where(held[variant] > 0, np.maximum(held[variant], 30), 0))
    assert held["gaussian"].min() == 1 and held["paper"].min() == 0


def test_step_1_alone_knows_no_other_site(embeddings: Path, tmp_path: Path) -> None:
    run_in_process(tmp_path / "run", *options(embeddings, "augmentation.step2=false", "augmentation.absent=skip"))
    for client in drawn(tmp_path / "run")["clients"]:
        held = np.array(client["held"])
        assert client["total"] == np.where(held > 0, np.maximum(held, 40), 0).tolist()


def test_a_run_over_sites_tells_each_and_their_likeness(embeddings: Path, tmp_path: Path) -> None:
    with drawing():
        summary = run_in_process(tmp_path / "run", *options(embeddings, "federation.partition=domain"))
    lines = rounds(tmp_path / "run")
    last = {site: np.mean([line["accuracy_by_domain"][site] for line in lines]) for site in ("north", "south", "west")}
    assert summary["by_domain"] == pytest.approx(last)
    assert summary["mean_over_domains"] == pytest.approx(np.mean(list(last.values())))
    assert summary["std_over_domains"] == pytest.approx(np.std(list(last.values())))
    assert summary["std_ddof"] == 0
    assert summary["f1_macro"] == pytest.approx(np.mean([line["f1_macro"] for line in lines]))
    confusion = json.loads((tmp_path / "run" / "confusion.json").read_text())
    counts = np.array(confusion["counts"])
    assert confusion["classes"] == ["ant", "bee", "cow"]
    assert np.trace(counts) / counts.sum() == pytest.approx(lines[-1]["accuracy"])
    pairs = json.loads((tmp_path / "run" / "similarity.json").read_text())
    assert [pair["domains"] for pair in pairs] == [["north", "south"], ["north", "west"], ["south", "west"]]
    assert all(pair["same_class"] > pair["other_class"] + 0.1 and pair["nearest_is_own"] == 1 for pair in pairs)
    for figure in ("similarity", "domains", "confusion", "label_distribution", "curves"):
        assert (tmp_path / "run" / "figures" / f"{figure}.png").stat().st_size > 1000
    assert "Similarity of the class shapes" in (tmp_path / "run" / "report.html").read_text()


def test_within_leaves_out_the_spread_between_sites(embeddings: Path, tmp_path: Path) -> None:
    variances = {}
    for kind in ("total", "within"):
        run_in_process(tmp_path / kind, *options(embeddings, f"augmentation.covariance={kind}"))
        variances[kind] = [shape["variance"] for shape in drawn(tmp_path / kind)["shapes"]]
    assert all(w < t for w, t in zip(variances["within"], variances["total"], strict=True))


def test_the_sent_precision_is_a_choice(embeddings: Path, tmp_path: Path) -> None:
    """float32 halves what covariances take and changes the result by its rounding at most."""
    single, double = (
        run_in_process(tmp_path / kind, *options(embeddings, f"augmentation.precision={kind}"))
        for kind in ("float32", "float64")
    )
    assert single["bytes_up"] < double["bytes_up"]
    assert single["perturbation_rms"] == pytest.approx(double["perturbation_rms"], rel=1e-5)
    assert single["final"] == pytest.approx(double["final"], abs=0.02)


def test_a_saved_partition_is_given_back(embeddings: Path, tmp_path: Path) -> None:
    run_in_process(tmp_path / "one", *options(embeddings))
    again = f"federation.partition_file={tmp_path / 'one' / 'partition.json'}"
    run_in_process(tmp_path / "two", *options(embeddings, again))
    run_in_process(tmp_path / "other", *options(embeddings, "seed=2"))
    saved = [(tmp_path / name / "partition.json").read_text() for name in ("one", "two", "other")]
    assert saved[0] == saved[1] != saved[2]
    assert rounds(tmp_path / "one") == rounds(tmp_path / "two")


# --- from images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with two classes of 15 pictures: dark and bright ones."""
    rng = np.random.default_rng(1)
    for site, low in (("left", 0), ("right", 40)):
        for label, high in (("dark", 100), ("bright", 200)):
            (tmp_path / "photos" / site / label).mkdir(parents=True)
            for at in range(15):
                pixels = rng.integers(low, high, (10, 12)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / site / label / f"{at:02d}.png")
    return tmp_path / "photos"


def image_options(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        *("experiment=domain_folder", f"data.path={folder}", "encoder=pixels", "encoder.size=4"),
        *("federation.rounds=2", "training.epochs=1", "augmentation.target=30", "augmentation.per_prototype=10"),
        *(f"cache_dir={folder.parent / 'cache'}", *more),
    )


def test_a_second_run_opens_no_image(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_in_process(tmp_path / "one", *image_options(folder))
    told = (tmp_path / "one" / "log.txt").read_text()
    assert "encoder pixels-4: 16 dimensions" in told
    assert "encoding client 0:" in told and "encoding client 1:" in told and "encoding test samples:" in told

    def refuse(*_: object) -> Image.Image:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(folders, "open_image", refuse)
    monkeypatch.setattr(folders.FileImages, "digest", refuse)
    second = run_in_process(tmp_path / "two", *image_options(folder))
    assert second["final"] == first["final"]
    assert rounds(tmp_path / "one") == rounds(tmp_path / "two")
    assert "encoding" not in (tmp_path / "two" / "log.txt").read_text()


def test_encoding_beforehand_fills_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run after scripts/embed.py opens no image; the file that it wrote gives the same run as data=features."""
    file = tmp_path / "made.npz"
    assert embed.main([*image_options(folder), "--npz", str(file)]) == 0
    assert f"features: {file}" in capsys.readouterr().out
    monkeypatch.setattr(folders, "open_image", lambda *_: pytest.fail("an image was opened"))
    run_in_process(tmp_path / "one", *image_options(folder))
    run_in_process(tmp_path / "two", *image_options(folder, "data=features", f"data.path={file}"))
    assert rounds(tmp_path / "one") == rounds(tmp_path / "two")


def test_encoding_beforehand_refuses_what_is_encoded(embeddings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed.main(["data=features", f"data.path={embeddings}"]) == 2
    assert "data=features: holds embeddings already" in capsys.readouterr().err
    assert embed.main(["data=simulated_eeg"]) == 2
    assert "not images" in capsys.readouterr().err


def test_the_images_of_a_run_are_the_default_of_encoding_beforehand(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of the ten training images of each site and class (12), and all validation and test images (20)."""
    words = image_options(folder, "federation.fraction=0.3")
    assert embed.main([*words]) == 0
    assert "32 embeddings of 16 dimensions by pixels-4" in capsys.readouterr().out
    assert embed.main([*words, "--all"]) == 0
    assert "60 embeddings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "named", "code"),
    [
        ("corrupt", "left/dark/03.png: not a readable image", 1),
        ("no image", "left/dark/notes.txt: not an image by its suffix", 2),
        ("empty class", "left/empty: this class has no images", 2),
        ("nothing", "holds no folders", 2),
    ],
)
def test_bad_images_are_refused_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, named: str, code: int
) -> None:
    where = folder
    if fault == "corrupt":
        (folder / "left" / "dark" / "03.png").write_bytes(b"\x89PNG and nothing else")
    elif fault == "no image":
        (folder / "left" / "dark" / "notes.txt").write_text("hello")
    elif fault == "empty class":
        (folder / "left" / "empty").mkdir()
    else:
        where = tmp_path / "void"
        where.mkdir()
    words = image_options(where, "engine=inprocess", f"run_dir={tmp_path / 'run'}")
    assert run_script.main(list(words)) == code
    said = capsys.readouterr()
    assert named in said.out + said.err and "Traceback" not in said.out + said.err
    if code == 1:
        assert named in json.loads((tmp_path / "run" / "summary.json").read_text())["error"]


def test_missing_data_is_one_line_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cifar100", "tiny_imagenet", "office_home_lds", "digits"):
        words = [f"experiment={name}", f"data.path={tmp_path}", f"run_dir={tmp_path / 'run'}"]
        assert run_script.main(words) == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and said.err.count("\n") == 1
        assert f"not found in {tmp_path}" in said.err and "data.path" in said.err


# --- real images and embeddings


@pytest.mark.slow
def test_real_images_by_a_pretrained_encoder(test_data: Path, tmp_path: Path) -> None:
    """560 PACS images, encoded inside the clients, agree with embeddings of the same images made elsewhere."""
    pytest.importorskip("efficientnet_lite_pytorch")
    words = (
        *("experiment=domain_folder", f"data.path={test_data / 'images' / 'pacs'}", "encoder=efficientnet_lite0"),
        *(f"cache_dir={tmp_path / 'cache'}", "federation.rounds=3", "augmentation.target=100"),
        "augmentation.per_prototype=50",
    )
    summary = run_in_process(tmp_path / "run", *words, nodes=2)
    assert set(summary["by_domain"]) == {"art_painting", "cartoon", "photo", "sketch"}
    assert summary["mean_over_domains"] > 0.7
    assert summary["by_domain"]["photo"] > 0.9
    assert "encoder efficientnet_lite0: 1280 dimensions" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_real_digits_as_an_image_folder(test_data: Path, tmp_path: Path) -> None:
    words = (
        *("experiment=image_folder", f"data.path={test_data / 'images' / 'digits' / 'mnist'}", "encoder=pixels"),
        *("encoder.size=14", "federation.clients=4", "federation.partition=iid", "augmentation.target=50"),
        *(f"cache_dir={tmp_path / 'cache'}", "federation.rounds=5"),
    )
    assert run_in_process(tmp_path / "run", *words)["final"] > 0.7


@pytest.mark.slow
def test_the_same_class_has_the_more_similar_shape_in_real_domains(test_data: Path, tmp_path: Path) -> None:
    """The claim of Figure 6, on Office-Caltech: in every pair of domains."""
    path = test_data / "features" / "office_caltech10_efflite0.npz"
    words = options(path, "federation.partition=domain", "federation.rounds=1", "experiment=office_caltech")[1:]
    run_in_process(tmp_path / "run", *words)
    pairs = json.loads((tmp_path / "run" / "similarity.json").read_text())
    assert len(pairs) == 6 and all(pair["classes"] >= 9 for pair in pairs)  # dslr has few samples of one
    assert all(pair["same_class"] > pair["other_class"] for pair in pairs)
