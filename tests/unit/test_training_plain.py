"""The local loop against numpy and torch's own optimisers, and what it promises to the methods."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from app.algorithms.base import Algorithm, Forward, Local, Trained
from app.algorithms.fedavg import FedAvg
from app.common.errors import FedgeoError
from app.models.base import Model, Output, Weights
from app.models.linear import Head
from app.training.plain import LocalResult, LocalSettings, optimiser, schedule, train
from tests.small_federation import FixedOrder

SETTINGS = LocalSettings(epochs=3, batch_size=4, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.05)


@dataclass(frozen=True)
class Shuffled(FixedOrder):
    """Rows in the generator's order, a new one each epoch."""

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self), generator=generator).split(batch_size):
            yield self.x[rows], self.y[rows]


def samples(n: int = 10, dtype: torch.dtype = torch.float64) -> Shuffled:
    g = torch.Generator().manual_seed(0)
    return Shuffled(torch.randn(n, 5, generator=g, dtype=dtype), torch.randint(0, 3, (n,), generator=g))


def start(dtype: torch.dtype = torch.float64) -> Weights:
    g = torch.Generator().manual_seed(1)
    return {
        "linear.weight": torch.randn(3, 5, generator=g, dtype=dtype),
        "linear.bias": torch.randn(3, generator=g, dtype=dtype),
    }


def fit(
    settings: LocalSettings = SETTINGS,
    algorithm: Algorithm | None = None,
    data: Shuffled | None = None,
    seed: int = 7,
    local: Local | None = None,
) -> LocalResult:
    return train(
        Head(5, 3).double(),
        samples() if data is None else data,
        algorithm or FedAvg(),
        local or Local(start()),
        settings,
        torch.Generator().manual_seed(seed),
    )


def test_sgd_equals_a_loop_written_in_numpy() -> None:
    data = samples()
    theta = np.c_[start()["linear.weight"].numpy(), start()["linear.bias"].numpy()]
    velocity, losses = np.zeros_like(theta), []
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        order = torch.randperm(10, generator=generator).numpy()
        for i in range(0, 10, 4):
            x, y = np.c_[data.x.numpy(), np.ones(10)][order[i : i + 4]], data.y.numpy()[order[i : i + 4]]
            e = np.exp(x @ theta.T)
            p = e / e.sum(1, keepdims=True)
            losses.append(-np.log(p[np.arange(len(y)), y]).mean())
            velocity = 0.9 * velocity + (p - np.eye(3)[y]).T @ x / len(y) + 0.05 * theta
            theta = theta - 0.1 * velocity
    result = fit()
    np.testing.assert_allclose(result.weights["linear.weight"].numpy(), theta[:, :-1], rtol=1e-12)
    np.testing.assert_allclose(result.weights["linear.bias"].numpy(), theta[:, -1], rtol=1e-12)
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert result.steps == 9


def test_adam_equals_torchs_on_the_same_batches() -> None:
    layer = nn.Linear(5, 3).double()
    layer.load_state_dict({name.removeprefix("linear."): w for name, w in start().items()})
    adam = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.05)
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        for x, y in samples().batches(4, generator):
            adam.zero_grad()
            nn.CrossEntropyLoss()(layer(x), y).backward()
            adam.step()
    result = fit(replace(SETTINGS, optimiser="adam"))
    torch.testing.assert_close(result.weights["linear.weight"], layer.weight.detach(), rtol=1e-12, atol=1e-12)


def test_the_same_generator_gives_the_same_bytes_and_another_one_does_not() -> None:
    once, again, other = fit(seed=1), fit(seed=1), fit(seed=2)
    assert torch.equal(once.weights["linear.weight"], again.weights["linear.weight"])
    assert not torch.equal(once.weights["linear.weight"], other.weights["linear.weight"])


def test_training_leaves_the_weights_it_started_from_alone() -> None:
    local = Local(start())
    result = fit(local=local)
    assert torch.equal(local.start["linear.weight"], start()["linear.weight"])
    assert not torch.equal(result.weights["linear.weight"], local.start["linear.weight"])


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 30))
def test_steps_counts_gradient_steps_whatever_the_epochs(n: int, batch_size: int, steps: int) -> None:
    settings = replace(SETTINGS, batch_size=batch_size, steps=steps)
    taken = list(schedule(samples(n), settings, torch.Generator().manual_seed(0)))
    assert len(taken) == steps
    per_epoch = -(-n // batch_size)
    whole = torch.cat([x for x, _ in taken[:per_epoch]])
    if steps >= per_epoch:  # the first epoch is whole: every sample once
        assert torch.equal(whole.sort(0).values, samples(n).x.sort(0).values)


def test_without_steps_the_epochs_count() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat([y for _, y in schedule(samples(10), SETTINGS, generator)])
    assert len(rows) == 30
    assert torch.equal(rows.sort().values, samples(10).y.repeat(3).sort().values)


def test_weight_decay_leaves_manifold_weights_out() -> None:
    entries = {"stiefel.0.tangent": torch.ones(2, requires_grad=True), "linear.w": torch.ones(2, requires_grad=True)}
    for name in ("sgd", "adam"):
        built = optimiser(entries, replace(SETTINGS, optimiser=name))
        decay = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
        assert decay == {id(entries["stiefel.0.tangent"]): 0.0, id(entries["linear.w"]): 0.05}


def test_a_loss_that_is_not_finite_is_told_before_anything_is_sent() -> None:
    data = samples()
    data.x[3, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        fit(data=data)


def test_a_client_without_samples_is_refused() -> None:
    with pytest.raises(FedgeoError, match="no training samples"):
        fit(replace(SETTINGS, steps=5), data=samples(0))


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(KeyError, match="do not fit"):
        fit(local=Local({"other": torch.zeros(1)}))


# --- what a method is given -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Witness(Algorithm):
    """Counts its participations and sends up what the loop told it."""

    def client_state(self, weights: Weights) -> Weights:
        return {"rounds": torch.zeros(()), "first": weights["linear.bias"]}

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        seen = torch.cat([y for _, y in trained.data()])
        logits = torch.cat([trained.forward(trained.weights, x).logits for x, _ in trained.data()])
        auxiliary = {
            "steps": torch.tensor(trained.steps),
            "lr": torch.tensor(trained.lr),
            "momentum": torch.tensor(trained.momentum),
            "labels": seen,
            "logits": logits,
        }
        return auxiliary, local.state | {"rounds": local.state["rounds"] + 1}


def test_a_method_learns_what_was_done_and_keeps_its_state() -> None:
    first = fit(algorithm=Witness())
    assert first.auxiliary["steps"] == 9
    assert first.auxiliary["lr"] == pytest.approx(0.1)
    assert first.auxiliary["momentum"] == pytest.approx(0.9)
    assert torch.equal(first.auxiliary["labels"], samples().y)  # one pass, in order
    logits = samples().x @ first.weights["linear.weight"].T + first.weights["linear.bias"]
    torch.testing.assert_close(first.auxiliary["logits"], logits)
    assert not first.auxiliary["logits"].requires_grad
    assert first.state["rounds"] == 1
    assert torch.equal(first.state["first"], start()["linear.bias"])
    second = fit(algorithm=Witness(), local=Local(first.weights, {}, first.state))
    assert second.state["rounds"] == 2
    assert torch.equal(second.state["first"], start()["linear.bias"])


def test_momentum_is_told_of_sgd_alone() -> None:
    result = fit(replace(SETTINGS, optimiser="adam"), algorithm=Witness())
    assert result.auxiliary["momentum"] == 0


class Normed(Model):
    """Batch statistics and dropout: what a reference pass must not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.linear = nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Output:
        z = self.norm(x)
        return Output(z, self.linear(self.drop(z)))


@dataclass(frozen=True)
class Looking(Algorithm):
    """Asks the global model about shifted data, beside training."""

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        with torch.no_grad():
            assert torch.equal(forward(local.start, x + 100).logits, forward(local.start, x + 100).logits)
        return super().loss(forward, weights, x, y, local)


def test_a_pass_without_gradients_neither_drops_units_nor_moves_batch_statistics() -> None:
    statistics = []
    for algorithm in (FedAvg(), Looking()):
        model = Normed()
        data = samples(12, torch.float32)
        train(model, data, algorithm, Local(model.export()), SETTINGS, torch.Generator().manual_seed(0))
        assert model.norm.num_batches_tracked == 9
        statistics.append(model.state_dict()["norm.running_mean"])
    assert torch.equal(*statistics)
