"""The batched loop against the plain one: whatever the method, the samples and their numbers, the same results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.algorithms.base import Algorithm, Forward, Local, Trained
from app.algorithms.fedavg import FedAvg
from app.algorithms.fedavgm import FedAvgM
from app.algorithms.feddyn import FedDyn
from app.algorithms.fedntd import FedNTD
from app.algorithms.fedopt import FedOpt
from app.algorithms.fedproto import FedProto
from app.algorithms.fedprox import FedProx
from app.algorithms.local_only import LocalOnly
from app.algorithms.moon import Moon
from app.algorithms.scaffold import Scaffold
from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.fedmix import MixedSet, Mixing, SharedMeans
from app.common.errors import FedgeoError
from app.geometry.class_geometry import geometry
from app.geometry.class_statistics import gather, merge
from app.models.base import Weights
from app.models.linear import Head
from app.training import cohort, plain
from app.training.cohort import CohortClient, chunk_size
from app.training.plain import LocalResult, LocalSettings
from app.training.samples import TensorSet
from tests.augmented import augmented_set

P, C = 7, 4
SETTINGS = LocalSettings(epochs=3, batch_size=8, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
METHODS = [
    FedAvg(),
    FedAvgM(),
    FedOpt(),
    LocalOnly(),
    FedProx(mu=0.5),
    Scaffold(),
    FedDyn(alpha=0.3),
    Moon(mu=2.0),
    FedNTD(),
    FedProto(),
    Mixing(FedAvg(), 0.3, C),
    Mixing(Moon(mu=2.0), 0.3, C),
    Mixing(Scaffold(), 0.3, C),
]
SIZES = (9, 1, 24, 8, 17)


def name(value: Any) -> str:
    return repr(value) if isinstance(value, Algorithm) else str(value)


def weights(dtype: torch.dtype, *, seed: int) -> Weights:
    g = torch.Generator().manual_seed(seed)
    return {
        "linear.weight": torch.randn(C, P, generator=g, dtype=dtype),
        "linear.bias": torch.randn(C, generator=g, dtype=dtype),
    }


def tensors(sizes: Sequence[int], dtype: type = np.float32) -> list[TensorSet]:
    rng = np.random.default_rng(0)
    return [TensorSet(rng.standard_normal((n, P)).astype(dtype), rng.integers(0, C, n)) for n in sizes]


def augmented(kind: str, *, step2: bool = False) -> list[AugmentedSet]:
    """Clients of unequal size and skewed labels; augmented, they hold between 12 and 100 samples."""
    rng = np.random.default_rng(1)
    own = [(rng.standard_normal((n, P)).astype(np.float32), rng.integers(0, 1 + k, n)) for k, n in enumerate(SIZES[:4])]
    parts = {k: gather(x, y) for k, (x, y) in enumerate(own)}
    chosen = {} if kind == "none" else {"target": 5, "step2": step2, "per_prototype": 3}
    shapes = geometry(merge(parts.values()), prototypes=parts if step2 else None)
    return [augmented_set(kind, x, y, shapes, classes=C, seed=3, client=k, **chosen) for k, (x, y) in enumerate(own)]


def mixed(sets: Sequence[AugmentedSet]) -> list[MixedSet]:
    rng = np.random.default_rng(2)
    means = SharedMeans(rng.standard_normal((6, P)).astype(np.float32), rng.dirichlet(np.ones(C), 6).astype(np.float32))
    return [MixedSet(each, means) for each in sets]


class Doubled:
    """A set whose samples are float64."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def batches(self, batch_size: int, generator: torch.Generator) -> Any:
        return ((x.double(), y) for x, y in self.inner.batches(batch_size, generator))

    def in_order(self, batch_size: int) -> Any:
        return ((x.double(), y) for x, y in self.inner.in_order(batch_size))


def local(algorithm: Algorithm, k: int, dtype: torch.dtype, *, first: bool = False) -> Local:
    """What client k begins with: in a later round, state and shared tensors that are not zero."""
    start = weights(dtype, seed=100 + k if isinstance(algorithm, LocalOnly) else 1)
    inner = algorithm.base if isinstance(algorithm, Mixing) else algorithm
    auxiliary: Weights = {}
    if isinstance(inner, Scaffold):
        auxiliary = weights(dtype, seed=3)
    if isinstance(inner, FedProto) and not first:
        g = torch.Generator().manual_seed(4)
        auxiliary = {
            "prototype": torch.randn(C, C, generator=g, dtype=dtype),
            "known": torch.tensor([1.0, 0, 1, 1], dtype=dtype),
        }
    stateful = bool(algorithm.client_state(start)) and not first
    return Local(start, auxiliary, weights(dtype, seed=10 + k) if stateful else {})


def order(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(50 + k)


def one_by_one(
    sets: Sequence[Any], algorithm: Algorithm, chosen: LocalSettings, locals_: Sequence[Local]
) -> list[LocalResult]:
    dtype = locals_[0].start["linear.weight"].dtype
    return [
        plain.train(Head(P, C).to(dtype), data, algorithm, locals_[k], chosen, order(k)) for k, data in enumerate(sets)
    ]


def together(
    sets: Sequence[Any], algorithm: Algorithm, chosen: LocalSettings, locals_: Sequence[Local]
) -> list[LocalResult]:
    found = cohort.train([CohortClient(d, locals_[k], order(k)) for k, d in enumerate(sets)], algorithm, chosen)
    return [result for result in found if isinstance(result, LocalResult)]


def assert_same(ours: Sequence[LocalResult], reference: Sequence[LocalResult], tolerance: float) -> None:
    assert len(ours) == len(reference) > 0
    for a, b in zip(ours, reference, strict=True):
        assert a.steps == b.steps
        assert a.loss == pytest.approx(b.loss, rel=tolerance)
        for tree, other in (
            (a.weights, b.weights),
            (a.auxiliary, b.auxiliary),
            (a.state, b.state),
            (a.moments, b.moments),
        ):
            assert tree.keys() == other.keys()
            for key, value in other.items():
                assert tree[key].dtype == value.dtype
                assert torch.linalg.vector_norm(tree[key] - value) <= tolerance * torch.linalg.vector_norm(value), key


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("algorithm", METHODS, ids=name)
def test_every_method_gives_what_the_plain_loop_gives(algorithm: Algorithm, first: bool) -> None:
    sets: Sequence[Any] = augmented("ggeur")
    if isinstance(algorithm, Mixing):
        sets = mixed(augmented("none"))
    for dtype, tolerance, data in (
        (torch.float32, 1e-5, sets),
        (torch.float64, 1e-10, [Doubled(each) for each in sets]),
    ):
        begun = [local(algorithm, k, dtype, first=first) for k in range(len(sets))]
        assert_same(together(data, algorithm, SETTINGS, begun), one_by_one(data, algorithm, SETTINGS, begun), tolerance)


@pytest.mark.parametrize("step2", [False, True])
@pytest.mark.parametrize("kind", ["none", "repeat", "ggeur"])
def test_every_augmentation_gives_what_the_plain_loop_gives(kind: str, step2: bool) -> None:
    if kind == "none" and step2:
        pytest.skip("there is no step 2 without augmentation")
    sets = augmented(kind, step2=step2)
    assert len({len(each) for each in sets}) > 1
    begun = [local(FedProx(), k, torch.float32) for k in range(len(sets))]
    assert_same(together(sets, FedProx(), SETTINGS, begun), one_by_one(sets, FedProx(), SETTINGS, begun), 1e-5)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.integers(1, 25),
    st.one_of(st.none(), st.integers(1, 12)),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([FedAvg(), Moon()]),
)
def test_unequal_counts_and_steps(
    sizes: list[int], batch_size: int, steps: int | None, momentum: float, algorithm: Algorithm
) -> None:
    chosen = replace(SETTINGS, batch_size=batch_size, steps=steps, momentum=momentum, epochs=2)
    sets = tensors(sizes, np.float64)
    begun = [local(algorithm, k, torch.float64) for k in range(len(sets))]
    assert_same(together(sets, algorithm, chosen, begun), one_by_one(sets, algorithm, chosen, begun), 1e-10)


def test_a_member_has_its_own_number_of_steps() -> None:
    sets, own = tensors(SIZES, np.float64), [5, None, 1, 40, None]
    begun = [local(FedAvg(), k, torch.float64) for k in range(len(sets))]
    members = [CohortClient(d, begun[k], order(k), steps=own[k]) for k, d in enumerate(sets)]
    ours = cohort.train(members, FedAvg(), SETTINGS)
    reference = [
        plain.train(Head(P, C).double(), d, FedAvg(), begun[k], replace(SETTINGS, steps=own[k]), order(k))
        for k, d in enumerate(sets)
    ]
    assert_same([r for r in ours if isinstance(r, LocalResult)], reference, 1e-10)


def test_a_set_too_large_to_be_shuffled_whole_is_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sets = [
        AugmentedSet(
            rng.standard_normal((n, P)).astype(np.float32),
            rng.integers(0, C, n),
            classes=C,
            seed=0,
            client=k,
        )
        for k, n in enumerate((900, 300, 1100))
    ]
    picks = AugmentedSet.picks
    room = 300 * (4 * P + 8)  # what fits 300 samples is too small for the two others
    monkeypatch.setattr(AugmentedSet, "picks", lambda self, size, g, window=None: picks(self, size, g, room))
    chosen = replace(SETTINGS, batch_size=50, epochs=1)
    begun = [local(FedAvg(), k, torch.float32) for k in range(3)]
    assert_same(together(sets, FedAvg(), chosen, begun), one_by_one(sets, FedAvg(), chosen, begun), 1e-5)


def test_momentum_goes_on_from_kept_moments() -> None:
    sets = tensors(SIZES[:3], np.float64)
    begun = [local(FedAvg(), k, torch.float64) for k in range(3)]
    earlier = [weights(torch.float64, seed=70 + k) for k in range(2)] + [{}]  # the last one starts afresh
    moments = [{f"{key}/momentum_buffer": v for key, v in tree.items()} for tree in earlier]
    members = [CohortClient(d, begun[k], order(k), moments[k]) for k, d in enumerate(sets)]
    reference = [
        plain.train(Head(P, C).double(), d, FedAvg(), begun[k], SETTINGS, order(k), moments[k])
        for k, d in enumerate(sets)
    ]
    ours = [r for r in cohort.train(members, FedAvg(), SETTINGS) if isinstance(r, LocalResult)]
    assert_same(ours, reference, 1e-10)


@pytest.mark.parametrize(("algorithm", "tolerance"), [(FedAvg(), 0.0), (Moon(), 1e-12)], ids=name)
def test_the_company_changes_a_result_by_rounding_at_most(algorithm: Algorithm, tolerance: float) -> None:
    sets = tensors(SIZES, np.float64)
    begun = [local(algorithm, k, torch.float64) for k in range(len(sets))]
    alone = cohort.train([CohortClient(sets[2], begun[2], order(2))], algorithm, SETTINGS)
    ours = together(sets, algorithm, SETTINGS, begun)[2:3]
    assert_same(ours, [r for r in alone if isinstance(r, LocalResult)], tolerance)


@dataclass(frozen=True)
class Signs(Algorithm):
    """A direction that is not affine in the weights."""

    def correct(self, gradients: Weights, weights: Weights, local: Local) -> Weights:
        return {name: g.sign() for name, g in gradients.items()}


def test_a_direction_of_its_own_gives_what_the_plain_loop_gives() -> None:
    sets = tensors(SIZES, np.float64)
    begun = [local(Signs(), k, torch.float64) for k in range(len(sets))]
    assert_same(together(sets, Signs(), SETTINGS, begun), one_by_one(sets, Signs(), SETTINGS, begun), 1e-10)


def test_training_leaves_what_it_was_given_alone() -> None:
    sets = tensors(SIZES)
    before = [(d.x.clone(), d.y.clone()) for d in sets]
    begun = [local(Moon(), k, torch.float32) for k in range(len(sets))]
    kept = [weights(torch.float32, seed=10 + k) for k in range(len(sets))]
    together(sets, Moon(), SETTINGS, begun)
    for (x, y), data in zip(before, sets, strict=True):
        assert torch.equal(x, data.x) and torch.equal(y, data.y)
    for state, each in zip(kept, begun, strict=True):
        assert torch.equal(state["linear.weight"], each.state["linear.weight"])
        assert torch.equal(each.start["linear.weight"], weights(torch.float32, seed=1)["linear.weight"])


@dataclass(frozen=True)
class Leaning(Algorithm):
    """A gradient offset that is one number, and a proximal weight that is a whole one, of any method's own class."""

    proximal_weight: int = 1  # type: ignore[assignment]

    def gradient_offset(self, local: Local) -> Weights:
        return {key: torch.tensor(0.25, dtype=value.dtype) for key, value in local.start.items()}


def test_a_gradient_offset_is_broadcast_and_numbers_may_be_whole() -> None:
    sets, chosen = tensors(SIZES, np.float64), replace(SETTINGS, weight_decay=0, lr=1)
    begun = [local(Leaning(), k, torch.float64) for k in range(len(sets))]
    assert_same(together(sets, Leaning(), chosen, begun), one_by_one(sets, Leaning(), chosen, begun), 1e-10)


def test_samples_and_weights_may_lie_in_any_order() -> None:
    (plainly,) = tensors(SIZES[:1], np.float64)
    odd = TensorSet(np.asfortranarray(plainly.x.numpy()), plainly.y.numpy().repeat(2)[::2])
    straight, moments = weights(torch.float64, seed=1), weights(torch.float64, seed=2)
    turned, kept = (
        {key: value.T.contiguous().T if value.ndim == 2 else value for key, value in tree.items()}
        for tree in (straight, moments)
    )
    member = CohortClient(
        odd, Local(turned), order(0), {f"{key}/momentum_buffer": value for key, value in kept.items()}
    )
    (ours,) = cohort.train([member], FedProx(), SETTINGS)
    member = replace(member, data=plainly, local=Local(straight))
    reference = plain.train(
        Head(P, C).double(), plainly, FedProx(), Local(straight), SETTINGS, order(0), dict(member.moments)
    )
    assert isinstance(ours, LocalResult)
    assert_same([ours], [reference], 1e-10)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_client_whose_loss_is_not_finite_leaves_the_others_be() -> None:
    sets = tensors(SIZES, np.float64)
    begun = [local(FedAvg(), k, torch.float64) for k in range(len(sets))]
    reference = together(sets, FedAvg(), SETTINGS, begun)
    sets[2].x[5, 0] = float("nan")
    results = cohort.train([CohortClient(d, begun[k], order(k)) for k, d in enumerate(sets)], FedAvg(), SETTINGS)
    assert isinstance(results[2], FloatingPointError)
    assert "not finite" in str(results[2])
    others = [r for r in results if isinstance(r, LocalResult)]
    assert_same(others, [r for k, r in enumerate(reference) if k != 2], 1e-12)


def test_a_client_with_a_label_outside_the_classes_leaves_the_others_be() -> None:
    sets = tensors(SIZES)
    sets[1].y[0] = C
    results = cohort.train(
        [CohortClient(d, local(FedAvg(), k, torch.float32), order(k)) for k, d in enumerate(sets)], FedAvg(), SETTINGS
    )
    assert [type(r) for r in results] == [LocalResult, IndexError, *[LocalResult] * 3]


def test_a_client_whose_momentum_has_another_shape_leaves_the_others_be() -> None:
    sets = tensors((9, 5, 4))
    kept = [{}, {"linear.weight/momentum_buffer": torch.zeros(C - 2, P)}, {}]
    members = [CohortClient(d, local(FedAvg(), k, torch.float32), order(k), kept[k]) for k, d in enumerate(sets)]
    results = cohort.train(members, FedAvg(), SETTINGS)
    assert [type(r) for r in results] == [LocalResult, RuntimeError, LocalResult]


def test_a_client_without_samples_leaves_the_others_be() -> None:
    sets = tensors((9, 0, 4))
    results = cohort.train(
        [CohortClient(d, local(FedAvg(), k, torch.float32), order(k)) for k, d in enumerate(sets)], FedAvg(), SETTINGS
    )
    assert isinstance(results[1], FedgeoError)
    assert "no training samples" in str(results[1])
    assert isinstance(results[0], LocalResult) and isinstance(results[2], LocalResult)
    assert all(math.isfinite(r.loss) for r in (results[0], results[2]))


@dataclass(frozen=True)
class Moody(Algorithm):
    """Fails after the last step of a client with nine samples."""

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        if sum(len(y) for _, y in trained.data()) == 9:
            raise RuntimeError("a bad day")
        return {}, {}


def test_a_client_whose_last_step_of_the_method_fails_leaves_the_others_be() -> None:
    sets = tensors((4, 9, 5))
    results = cohort.train(
        [CohortClient(d, local(Moody(), k, torch.float32), order(k)) for k, d in enumerate(sets)], Moody(), SETTINGS
    )
    assert [type(r) for r in results] == [LocalResult, RuntimeError, LocalResult]


def test_nobody_is_trained_where_nobody_takes_part() -> None:
    assert cohort.train([], FedAvg(), SETTINGS) == []


def test_weights_of_another_model_are_refused() -> None:
    member = CohortClient(tensors((5,))[0], Local({"other": torch.zeros(1)}), order(0))
    with pytest.raises(KeyError, match="do not fit"):
        cohort.train([member], FedAvg(), SETTINGS)


# --- what a method may ask of the loop ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curious(Algorithm):
    """A penalty on the slope of the loss at other samples than the batch's: products differentiated twice."""

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        at = (x.flip(-1) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(forward(weights, at).logits.square().sum(), at, create_graph=True)
        return super().loss(forward, weights, at, y, local) + slope.square().sum(-1)


def test_a_loss_may_use_other_samples_and_second_derivatives() -> None:
    sets = tensors(SIZES, np.float64)
    begun = [local(Curious(), k, torch.float64) for k in range(len(sets))]
    chosen = replace(SETTINGS, lr=0.001)
    ours, reference = together(sets, Curious(), chosen, begun), one_by_one(sets, Curious(), chosen, begun)
    assert_same(ours, reference, 1e-10)


# --- chunks ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1000))
def test_a_chunk_has_at_most_ten_clients_and_two_cores_find_one_each(clients: int) -> None:
    size = chunk_size(clients)
    assert 1 <= size <= 10
    assert clients == 1 or size < clients
