"""The batched loop: a client that fails leaves the others' results as they would be without it."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from app.algorithms.base import Algorithm, Local, Trained
from app.algorithms.fedavg import FedAvg
from app.common.errors import FedgeoError
from app.models.base import Weights
from app.training import cohort
from app.training.cohort import CohortClient
from app.training.plain import LocalResult
from tests.cohorts import (
    SETTINGS,
    SIZES,
    C,
    P,
    assert_same,
    local,
    order,
    tensors,
    together,
)


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
