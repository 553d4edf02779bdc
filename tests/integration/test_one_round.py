"""One-round heads, first heads and domain-shift transfer as whole runs over embeddings of three domains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.geometry import closed_form
from app.geometry.class_statistics import gather
from tests.running import rounds, run_in_process

P, CLASSES, DOMAINS = 6, 4, ("art", "photo", "sketch")
FLOAT32, FLOAT64, INT64 = 4, 8, 8


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gaussian classes, each domain moved as a whole."""
    rng = np.random.default_rng(0)
    centres, deltas = 2 * rng.standard_normal((CLASSES, P)), rng.standard_normal((len(DOMAINS), P))
    arrays: dict[str, Any] = {"classes": np.array([f"class {c}" for c in range(CLASSES)])}
    for d, name in enumerate(DOMAINS):
        y = np.arange(200) % CLASSES
        arrays[f"{name}_X"] = (centres[y] + deltas[d] + rng.standard_normal((len(y), P))).astype(np.float32)
        arrays[f"{name}_y"] = y
    path = tmp_path_factory.mktemp("embeddings") / "three.npz"
    np.savez(path, **arrays)
    return path


def overrides(path: Path, *more: str) -> tuple[str, ...]:
    """Label and domain skew: two clients a domain."""
    skew = ("federation.partition=domain_dirichlet", "federation.clients=6", "federation.beta=0.5")
    short = ("federation.rounds=2", "training.epochs=1", "training.lr=0.1", "encoder.normalise=none")
    return ("data=features", f"data.path={path}", *skew, *short, "augmentation.target=30", *more)


def ran(folder: Path, path: Path, *more: str) -> dict[str, Any]:
    return run_in_process(folder, *overrides(path, *more))


def held(path: Path) -> tuple[list[np.ndarray], Any]:
    """The labels of each client's training samples, and the data set."""
    dataset = image_dataset(load(overrides(path)))
    return [dataset.train(k).y for k in range(len(dataset))], dataset


def means_bytes(labels: list[np.ndarray]) -> int:
    """What counts and means of every client's classes take: class, count and rank, and a float64 mean."""
    return sum(len(np.unique(y)) * (3 * INT64 + FLOAT64 * P) for y in labels)


def test_lda_and_ridge_are_the_closed_forms_of_the_pooled_samples(embeddings: Path, tmp_path: Path) -> None:
    _, dataset = held(embeddings)
    whole = [dataset.train(k) for k in range(len(dataset))]
    pooled = gather(np.concatenate([s.x for s in whole]), np.concatenate([s.y for s in whole]))
    test = dataset.held_out("test", None)
    for name, solve in {"lda": closed_form.lda, "ridge": closed_form.ridge}.items():
        summary = ran(tmp_path / name, embeddings, f"method={name}", "augmentation.precision=float64")
        weight, bias = solve(pooled, CLASSES)
        found = load_file(tmp_path / name / "model-final.safetensors")
        np.testing.assert_allclose(found["linear.weight"], weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["linear.bias"], bias, rtol=1e-5, atol=1e-6)
        assert (summary["status"], summary["rounds"], summary["method"]) == ("completed", 1, name)
        right = ((test.x @ weight.T + bias).argmax(1) == test.y).mean()
        assert summary["final"] == pytest.approx(right) and right > 0.8


def test_one_line_says_what_the_round_cost_and_means_only_sends_no_covariance(embeddings: Path, tmp_path: Path) -> None:
    labels, _ = held(embeddings)
    summary = ran(tmp_path / "means", embeddings, "method=means_only")
    (line,) = rounds(tmp_path / "means")
    assert line["clients"] == len(labels) and line["bytes_up"] == summary["bytes_up"] == means_bytes(labels)
    full = ran(tmp_path / "lda", embeddings, "method=lda")
    assert full["bytes_up"] > summary["bytes_up"] and full["bytes_down"] == summary["bytes_down"] == 0


def test_ccvr_learns_on_the_server_and_is_the_same_on_two_nodes(embeddings: Path, tmp_path: Path) -> None:
    chosen = overrides(embeddings, "method=ccvr", "method.samples=100", "method.epochs=5")
    one = run_in_process(tmp_path / "one", *chosen)
    run_in_process(tmp_path / "two", *chosen, nodes=2)
    models = [(tmp_path / name / "model-final.safetensors").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1] and one["rounds"] == 1 and one["final"] > 0.8


@pytest.mark.parametrize("augmentation", ["none", "ggeur", "fedfa", "shift"])
@pytest.mark.parametrize("head", ["lda", "ridge"])
def test_rounds_start_from_the_head(embeddings: Path, tmp_path: Path, head: str, augmentation: str) -> None:
    """With next to no learning rate, the rounds end where they began."""
    still = ("training.lr=1.0e-9", "training.weight_decay=0.0", f"augmentation={augmentation}")
    summary = ran(tmp_path / "run", embeddings, f"model.init={head}", *still)
    alone = ran(tmp_path / "alone", embeddings, f"method={head}")
    assert summary["final"] == pytest.approx(alone["final"]) and summary["rounds"] == 2
    begun, made = (load_file(tmp_path / name / "model-final.safetensors") for name in ("run", "alone"))
    np.testing.assert_allclose(begun["linear.weight"], made["linear.weight"], atol=1e-5)


def test_a_first_head_costs_nothing_more_where_the_geometry_is_shared_anyway(embeddings: Path, tmp_path: Path) -> None:
    bytes_up = {}
    for augmentation in ("ggeur", "none"):
        for init in ("zeros", "lda", "auto"):
            where = tmp_path / f"{augmentation}-{init}"
            chosen = (f"augmentation={augmentation}", f"model.init={init}")
            bytes_up[augmentation, init] = ran(where, embeddings, *chosen)["bytes_up"]
    assert bytes_up["ggeur", "lda"] == bytes_up["ggeur", "zeros"] == bytes_up["none", "lda"] > bytes_up["none", "zeros"]
    assert bytes_up["none", "auto"] == bytes_up["none", "zeros"]
    models = [load_file(tmp_path / f"ggeur-{init}" / "model-final.safetensors") for init in ("lda", "auto")]
    for name, value in models[0].items():
        np.testing.assert_array_equal(models[1][name], value)


def test_shift_sends_means_alone_unless_noise_is_wanted(embeddings: Path, tmp_path: Path) -> None:
    labels, _ = held(embeddings)
    none, shift, noisy, repeat = (
        ran(tmp_path / name, embeddings, *chosen)
        for name, *chosen in (
            ("none", "augmentation=none"),
            ("shift", "augmentation=shift"),
            ("noisy", "augmentation=shift", "augmentation.noise=true"),
            ("repeat", "augmentation=repeat"),
        )
    )
    assert shift["bytes_up"] - none["bytes_up"] == means_bytes(labels)
    assert noisy["bytes_up"] == repeat["bytes_up"] > shift["bytes_up"]
    assert shift["added_samples"] == noisy["added_samples"] == repeat["added_samples"] > 0
    assert shift["perturbation_rms"] == 0 < noisy["perturbation_rms"]
    record = json.loads((tmp_path / "shift" / "augmentation.json").read_text())
    assert record["added"] == shift["added_samples"] and len(record["clients"]) == len(labels)


def test_shift_learns_and_is_the_same_on_two_nodes(embeddings: Path, tmp_path: Path) -> None:
    chosen = overrides(embeddings, "augmentation=shift", "federation.rounds=4")
    one = run_in_process(tmp_path / "one", *chosen)
    run_in_process(tmp_path / "two", *chosen, nodes=2)
    models = [(tmp_path / name / "model-final.safetensors").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1] and one["final"] > 0.8


def test_shift_is_refused_by_name_without_a_second_domain(embeddings: Path, tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="augmentation=shift: all clients hold one domain"):
        run_in_process(tmp_path / "one", "augmentation=shift")
    with pytest.raises(FedgeoError, match="augmentation=shift: a client holds a mixture of domains"):
        ran(tmp_path / "mixed", embeddings, "augmentation=shift", "federation.partition=iid")


def test_cohorts_train_shifted_samples_from_a_head_as_single_clients_do(embeddings: Path, tmp_path: Path) -> None:
    chosen = ("augmentation=shift", "augmentation.noise=true", "model.init=lda")
    ran(tmp_path / "plain", embeddings, *chosen)
    ran(tmp_path / "cohort", embeddings, *chosen, "training.loop=cohort")
    plain, cohort = (load_file(tmp_path / name / "model-final.safetensors") for name in ("plain", "cohort"))
    np.testing.assert_allclose(cohort["linear.weight"], plain["linear.weight"], rtol=1e-4, atol=1e-5)
