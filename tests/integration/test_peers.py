"""FedMix and FedFA against their formulas by hand, their limits, and over the grid."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from app.algorithms.base import Algorithm, Local, cross_entropy
from app.algorithms.fedavg import FedAvg
from app.algorithms.moon import Moon
from app.algorithms.scaffold import Scaffold
from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.fedmix import MixedSet, Mixing, SharedMeans, batch_means, pooled
from app.common.errors import FedgeoError
from app.config.compose import load
from app.data.images.dataset import image_dataset
from app.geometry.class_statistics import gather, merge
from app.geometry.gaussians import Gaussians, estimate
from app.geometry.gaussians import merge as merge_gaussians
from app.launch.job import plan
from app.models.base import Output, Weights
from tests.augmented import augmented_set, expected_rms
from tests.running import rounds, run_in_process
from tests.small_federation import distance

P, C = 4, 3
SHORT = ("federation.rounds=3", "augmentation.target=20")


def linear(weights: Weights, x: Tensor) -> Output:
    logits = x @ weights["weight"].mT + weights["bias"]
    return Output(logits, logits)


def problem(seed: int = 0, batch: tuple[int, ...] = (5,)) -> tuple[Weights, Tensor, Tensor, Tensor, Tensor]:
    """weights, samples (..., P), labels (...), means (..., P), soft labels (..., C), in float64."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    weights = {"weight": draw(C, P), "bias": draw(C)}
    labels = torch.randint(C, batch, generator=g)
    return weights, draw(*batch, P), labels, draw(*batch, P), torch.softmax(draw(*batch, C), dim=-1)


def mixed_loss(base: Algorithm, lambda_: float, local: Local | None = None, seed: int = 0) -> Tensor:
    weights, x, y, means, soft = problem(seed)
    loss = Mixing(base, lambda_, C).loss(linear, weights, torch.cat([x, means, soft], -1), y, local or Local(weights))
    return loss.detach()


# --- FedMix: what is shared


@settings(max_examples=50)
@given(n=st.integers(0, 60), size=st.integers(1, 20), minimum=st.integers(1, 10), seed=st.integers(0, 9))
def test_batches_share_all_samples_out_and_none_is_small(n: int, size: int, minimum: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, P)).astype(np.float32), rng.integers(C, size=n)
    shared = batch_means(x, y, C, size, np.random.default_rng(seed), minimum)
    if n < minimum:
        assert len(shared) == 0
        return
    number = max(1, n // max(size, minimum))
    assert len(shared) == number
    sizes = np.array([len(part) for part in np.array_split(np.arange(n), number)])
    assert sizes.min() >= min(n, max(size, minimum))
    assert np.allclose(sizes @ shared.means / n, x.mean(axis=0), atol=1e-6)
    assert np.allclose(sizes @ shared.labels, np.bincount(y, minlength=C), atol=1e-4)


def test_a_mean_and_its_label_are_of_the_same_samples() -> None:
    """Where a sample is its own one-hot label, so is every mean."""
    y = np.random.default_rng(0).integers(C, size=40)
    shared = batch_means(np.eye(C, dtype=np.float32)[y], y, C, 7, np.random.default_rng(1), minimum=1)
    assert np.array_equal(shared.means, shared.labels)
    assert len(np.unique(shared.means, axis=0)) > 1


def test_faulty_means_are_refused_by_their_sender() -> None:
    good = SharedMeans(np.zeros((2, P), np.float32), np.full((2, C), 1 / C, np.float32)).to_arrays()
    SharedMeans.from_arrays(good, C, "client 3")
    for change in (
        {"labels": good["labels"] * 2},
        {"labels": np.array([[-1, 1, 1], [0, 0, 1]], np.float32)},
        {"labels": good["labels"][:1]},
        {"means": np.full((2, P), np.nan, np.float32)},
    ):
        with pytest.raises(FedgeoError, match="^client 3: "):
            SharedMeans.from_arrays({**good, **change}, C, "client 3")
    with pytest.raises(FedgeoError, match=r"privacy\.min_count"):
        pooled([batch_means(np.zeros((2, P)), np.zeros(2, int), C, 4, np.random.default_rng(0), minimum=3)])


# --- FedMix: the loss


def test_fedmix_is_its_formula_by_hand() -> None:
    weights, x, y, means, soft = problem()
    lambda_ = 0.3
    expected = []
    for i in range(len(y)):
        a = (1 - lambda_) * x[i]
        p = torch.softmax(weights["weight"] @ a + weights["bias"], dim=0)
        one_hot = F.one_hot(y[i], C).double()
        slope = weights["weight"].mT @ (p - one_hot)
        hard, mixed = -p[y[i]].log(), -(soft[i] * p.log()).sum()
        expected.append((1 - lambda_) * hard + lambda_ * mixed + lambda_ * slope @ means[i])
    assert torch.allclose(mixed_loss(FedAvg(), lambda_), torch.stack(expected), rtol=1e-12)


def test_fedmix_approaches_mixup_to_first_order() -> None:
    """The gap to Mixup with the means falls with the square of lambda, as a first-order expansion's must."""
    weights, x, y, means, soft = problem()

    def gap(lambda_: float) -> Tensor:
        target = (1 - lambda_) * F.one_hot(y, C).double() + lambda_ * soft
        logits = linear(weights, (1 - lambda_) * x + lambda_ * means).logits
        return (-(target * F.log_softmax(logits, -1)).sum(-1) - mixed_loss(FedAvg(), lambda_)).abs()

    ratio = gap(2e-3) / gap(1e-3)
    assert torch.allclose(ratio, torch.full_like(ratio, 4.0), rtol=0.05)


def test_lambda_zero_is_the_base_method_to_the_bit() -> None:
    weights, x, y, *_ = problem()
    assert torch.equal(mixed_loss(FedAvg(), 0.0), cross_entropy(linear(weights, x).logits, y))


def test_a_base_method_keeps_its_own_terms() -> None:
    weights, x, y, *_ = problem()
    local = Local(weights, state={name: w + 0.3 for name, w in weights.items()})
    here = {name: 0.5 * w for name, w in weights.items()}

    def loss(base: Algorithm, inputs: Tensor) -> Tensor:
        return base.loss(linear, here, inputs, y, local)

    _, _, _, means, soft = problem()
    stacked = torch.cat([x, means, soft], -1)
    term = loss(Mixing(Moon(), 0.2, C), stacked) - loss(Mixing(FedAvg(), 0.2, C), stacked)
    assert torch.allclose(term, loss(Moon(), 0.8 * x) - loss(FedAvg(), 0.8 * x))
    assert float(term.detach().abs().max()) > 0.01
    zero = {name: torch.zeros_like(w) for name, w in weights.items()}
    corrected = Mixing(Scaffold(), 0.2, C).correct(zero, weights, Local(weights, auxiliary=weights, state=zero))
    assert all(torch.equal(corrected[name], weights[name]) for name in weights)


def test_clients_may_be_stacked() -> None:
    weights, x, y, means, soft = problem(batch=(2, 5))
    inputs = torch.cat([x, means, soft], -1)
    together = Mixing(FedAvg(), 0.2, C).loss(linear, weights, inputs, y, Local(weights))
    single = [Mixing(FedAvg(), 0.2, C).loss(linear, weights, inputs[k], y[k], Local(weights)) for k in range(2)]
    assert torch.allclose(together, torch.stack(single))


def test_pairs_are_drawn_anew_and_samples_shuffled_as_without() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, P)).astype(np.float32), rng.integers(C, size=50)
    own = AugmentedSet(x, y, classes=C, seed=1, client=0)
    shared = batch_means(x, y, C, 5, rng, minimum=1)
    mixed = MixedSet(own, shared)
    mine, plain = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    epochs: list[Tensor] = []
    for _ in range(2):
        with_pairs, alone = list(mixed.batches(8, mine)), list(own.batches(8, plain))
        assert all(torch.equal(a[0][:, :P], b[0]) for a, b in zip(with_pairs, alone, strict=True))
        assert all(torch.equal(a[1], b[1]) for a, b in zip(with_pairs, alone, strict=True))
        epochs.append(torch.cat([batch[:, P:] for batch, _ in with_pairs]))
    known = {row.tobytes() for row in np.concatenate([shared.means, shared.labels], axis=1)}
    assert {row.numpy().tobytes() for row in epochs[0]} == known
    assert not torch.equal(epochs[0], epochs[1])
    with pytest.raises(FedgeoError, match="dimension"):
        MixedSet(own, SharedMeans(shared.means[:, 1:], shared.labels))


# --- FedFA


def clients(seed: int = 0, sizes: Sequence[int] = (30, 40)) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(P, P))
    made = []
    for n in sizes:
        y = rng.integers(C, size=n)
        made.append(((rng.normal(size=(n, P)) @ mixing + 3 * y[:, None]).astype(np.float32), y))
    return made


def test_merged_gaussians_are_those_of_the_pooled_samples() -> None:
    parts = clients()
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    merged = merge_gaussians({k: estimate(*part) for k, part in enumerate(parts)}, prototypes=True)
    for row, label in enumerate(merged.classes):
        samples = x[y == label].astype(float)
        assert merged.counts[row] == len(samples)
        assert np.allclose(merged.means[row], samples.mean(0))
        assert np.allclose(merged.variances[row], samples.var(0))
    held = [(label, k) for label in range(C) for k in range(2)]
    assert list(zip(merged.prototype_classes, merged.prototype_clients, strict=True)) == held
    for (label, k), mean in zip(held, merged.prototype_means, strict=True):
        own_x, own_y = parts[k]
        assert np.allclose(mean, own_x[own_y == label].mean(0), atol=1e-6)


@pytest.mark.parametrize("between", [True, False])
def test_the_variances_are_the_diagonal_of_the_merged_covariance(between: bool) -> None:
    parts = clients()
    merged = merge_gaussians({k: estimate(*part) for k, part in enumerate(parts)}, between)
    full = merge([gather(*part) for part in parts], between)
    for row in range(C):
        assert np.allclose(merged.variances[row], full.covariance(row).diagonal())


def test_faulty_gaussians_are_refused_by_their_sender() -> None:
    good = estimate(*clients()[0]).to_arrays()
    assert np.array_equal(Gaussians.from_arrays(good).variances, good["variances"])
    for name, value in (
        ("variances", -good["variances"]),
        ("means", good["means"][:, :1]),
        ("counts", np.zeros(C, np.int64)),
        ("prototype_clients", np.zeros(1, np.int64)),
    ):
        with pytest.raises(FedgeoError, match="^client 1: "):
            Gaussians.from_arrays({**good, name: value}, "client 1")


def test_fedfa_draws_round_prototypes_with_variances_and_no_covariance() -> None:
    (x, y), other = clients(1)
    x, y = x[y != 2], y[y != 2]  # class 2 is absent here
    merged = merge_gaussians({0: estimate(x, y), 1: estimate(*other)}, prototypes=True)
    chosen = {"target": 20_000, "step2": True, "per_prototype": 20_000}
    made = augmented_set("fedfa", x, y, merged, classes=C, seed=1, **chosen)
    drawn, labels = (t.numpy()[len(x) :] for t in made.materialise())
    sources = [(0, x[y == 0].mean(0)), (1, x[y == 1].mean(0)), (2, merged.means[2])]
    sources += [(label, other[0][other[1] == label].mean(0)) for label in range(C)]
    start = 0
    for place, (label, anchor) in enumerate(sources):
        count = 20_000 - int((y == label).sum()) if place < C else 20_000
        part = drawn[start : start + count]
        assert set(labels[start : start + count]) == {label}
        variance = merged.variances[label]
        assert np.allclose(part.mean(0), anchor, atol=5 * np.sqrt(variance.max() / count))
        correlation = np.cov((part - anchor) / np.sqrt(variance), rowvar=False)
        assert np.allclose(correlation, np.eye(P), atol=0.05)
        start += count
    assert start == len(drawn)
    assert made.perturbation_rms == pytest.approx(expected_rms(made), rel=0.02)


def test_fedfa_holds_as_many_samples_as_repeat() -> None:
    (x, y), other = clients(1)
    merged = merge_gaussians({0: estimate(x, y), 1: estimate(*other)}, prototypes=True)
    sets = [augmented_set(kind, x, y, merged, classes=C, seed=1, target=15, step2=True) for kind in ("fedfa", "repeat")]
    assert sets[0].counts.tolist() == sets[1].counts.tolist()
    assert sets[0].perturbed == sets[1].added > 0


# --- over the grid


@pytest.mark.parametrize("kind", ["fedmix", "fedfa"])
def test_the_number_of_nodes_changes_nothing(tmp_path: Path, kind: str) -> None:
    options = (*SHORT, f"augmentation={kind}", "federation.participation=0.5")
    run_in_process(tmp_path / "one", *options)
    run_in_process(tmp_path / "three", *options, nodes=3)
    assert rounds(tmp_path / "one") == rounds(tmp_path / "three")


def test_fedmix_without_mixing_is_the_plain_run(tmp_path: Path) -> None:
    plain = (*SHORT, "training=plain")
    run_in_process(tmp_path / "plain", *plain, "augmentation=none")
    run_in_process(tmp_path / "mixed", *plain, "augmentation=fedmix", "augmentation.mix=0")
    assert rounds(tmp_path / "plain") == rounds(tmp_path / "mixed")
    run_in_process(tmp_path / "more", *plain, "augmentation=fedmix", "augmentation.mix=0.2")
    losses = [[line["train_loss"] for line in rounds(tmp_path / name)] for name in ("plain", "more")]
    assert min(abs(a - b) for a, b in zip(*losses, strict=True)) > 1e-3


@pytest.mark.parametrize("kind", ["fedmix", "fedfa"])
def test_the_batched_loop_gives_the_same(tmp_path: Path, kind: str) -> None:
    options = (*SHORT, f"augmentation={kind}", "augmentation.mix=0.2", "method=moon")
    for loop in ("plain", "cohort"):
        run_in_process(tmp_path / loop, *options, f"training={loop}")
    plain, cohort = (load_file(tmp_path / loop / "model-final.safetensors") for loop in ("plain", "cohort"))
    assert float(plain["linear.weight"].abs().max()) > 0.1
    assert distance(plain, cohort) < 1e-5


def test_fedfa_adds_as_many_samples_as_repeat_and_sends_no_covariance(tmp_path: Path) -> None:
    summary = run_in_process(tmp_path / "fedfa", *SHORT, "augmentation=fedfa")
    repeat = run_in_process(tmp_path / "repeat", *SHORT, "augmentation=repeat")
    assert summary["added_samples"] == repeat["added_samples"]
    assert summary["perturbation_rms"] > 0.1
    dataset = image_dataset(load(" ".join(SHORT)))
    held = sum(len(np.unique(dataset.train(k).y)) for k in range(10))
    each = 8 + 8 + 2 * 64 * 4  # class, count, mean and variances in float32
    weights = 3 * sum(line["bytes_up"] for line in rounds(tmp_path / "fedfa")[:1])
    assert summary["bytes_up"] == weights + held * each


def test_fedmix_sends_means_of_enough_samples(tmp_path: Path) -> None:
    options = (*SHORT, "augmentation=fedmix", "augmentation.mean_of=4", "privacy.min_count=20")
    summary = run_in_process(tmp_path / "run", *options)
    dataset = image_dataset(load(" ".join(SHORT)))
    counts = np.stack([np.bincount(dataset.train(k).y, minlength=10) for k in range(10)])
    told = np.where(counts >= 20, counts, 0).sum(axis=1)  # nothing is said of rarer classes
    assert (told < counts.sum(axis=1)).any()
    means = (told // 20).sum()
    weights = 3 * rounds(tmp_path / "run")[0]["bytes_up"]
    assert summary["bytes_up"] == weights + means * (64 + 10) * 4
    assert summary["added_samples"] == 0


def test_where_class_means_may_not_be_sent_batch_means_may_not_either() -> None:
    with pytest.raises(FedgeoError, match="augmentation=fedmix sends means .* privacy.prototypes=false forbids"):
        plan(["augmentation=fedmix", "privacy.prototypes=false"])


def test_nobody_with_enough_samples_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(FedgeoError, match="no client has privacy.min_count samples"):
        run_in_process(tmp_path / "run", *SHORT, "augmentation=fedmix", "privacy.min_count=5000")
