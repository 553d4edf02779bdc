"""The batched loop against the plain one: whatever the method, the samples and their numbers, the same results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.algorithms.base import Algorithm, Forward, Local
from app.algorithms.fedavg import FedAvg
from app.algorithms.fedprox import FedProx
from app.algorithms.moon import Moon
from app.augmentation.augmented_set import AugmentedSet
from app.augmentation.fedmix import Mixing
from app.models.base import Weights
from app.models.linear import Head
from app.training import cohort, plain
from app.training.cohort import CohortClient, chunk_size
from app.training.plain import LocalResult
from app.training.samples import TensorSet
from tests.cohorts import (
    METHODS,
    SETTINGS,
    SIZES,
    C,
    Doubled,
    P,
    assert_same,
    augmented,
    local,
    mixed,
    name,
    one_by_one,
    order,
    tensors,
    together,
    weights,
)


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
