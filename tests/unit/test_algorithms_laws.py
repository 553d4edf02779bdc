"""What must hold between the base methods, and what each is for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
from app.algorithms.moon import Moon
from app.algorithms.scaffold import Scaffold, effective_steps
from app.common.errors import FedgeoError
from app.models.base import Model, Output, Weights
from app.models.linear import Head
from app.models.mlp import MLP
from app.training.plain import LocalSettings
from tests.small_federation import Federation, FixedOrder, distance

SETTINGS = LocalSettings(epochs=2, batch_size=4, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
PLAN = [[0, 1], [1, 2], [0, 2], [0, 1, 2], [2]]


def classification(
    algorithm: Algorithm,
    *,
    hidden: int = 0,
    clients: Sequence[int] = (9, 6, 13),
    dtype: torch.dtype = torch.float32,
    forget: Literal["", "client"] = "",
    equal: bool = False,
    total: int | None = None,
) -> Federation:
    """Clients of the given sizes with labels of three classes, from the same start for every algorithm."""
    generator = torch.Generator().manual_seed(0)

    def model() -> Model:
        return (MLP(5, 3, hidden) if hidden else Head(5, 3)).to(dtype)

    start = model()
    start.reset(generator)
    weights = {
        name: w + 0.3 * torch.randn(w.shape, generator=generator, dtype=dtype) for name, w in start.export().items()
    }
    data = [
        FixedOrder(torch.randn(n, 5, generator=generator, dtype=dtype), torch.randint(0, 3, (n,), generator=generator))
        for n in clients
    ]
    return Federation(algorithm, model, data, SETTINGS, weights, forget=forget, equal=equal, total=total)


@pytest.mark.parametrize("hidden", [0, 6])
@pytest.mark.parametrize("neutral", [FedProx(mu=0), Moon(mu=0), FedNTD(beta=0), FedProto(lambda_=0)])
def test_with_its_weight_at_zero_a_method_is_fedavg_to_the_bit(neutral: Algorithm, hidden: int) -> None:
    ours = classification(neutral, hidden=hidden).run(PLAN)
    plain = classification(FedAvg(), hidden=hidden).run(PLAN)
    for a, b in zip(ours, plain, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.parametrize("neutral", [FedAvgM(beta=0, server_lr=1), FedOpt(momentum=0, server_lr=1)])
def test_a_server_step_of_one_without_momentum_is_fedavg_to_rounding(neutral: Algorithm) -> None:
    ours = classification(neutral, dtype=torch.float64).run(PLAN)
    plain = classification(FedAvg(), dtype=torch.float64).run(PLAN)
    assert max(distance(a, b) for a, b in zip(ours, plain, strict=True)) < 1e-14


def test_feddyn_without_its_corrections_is_fedprox_with_equal_weights() -> None:
    # each round moves h by alpha |S| / K: with this K it stays at zero
    ours = classification(FedDyn(alpha=0.8), dtype=torch.float64, forget="client", total=10**18).run(PLAN)
    prox = classification(FedProx(mu=0.8), dtype=torch.float64, equal=True).run(PLAN)
    assert max(distance(a, b) for a, b in zip(ours, prox, strict=True)) < 1e-14
    weighted = classification(FedProx(mu=0.8), dtype=torch.float64).run(PLAN)
    assert distance(ours[-1], weighted[-1]) > 1e-3


def test_a_small_alpha_is_not_fedavg() -> None:
    small = classification(FedDyn(alpha=1e-6), dtype=torch.float64, equal=True).run(PLAN)
    plain = classification(FedAvg(), dtype=torch.float64, equal=True).run(PLAN)
    assert distance(small[0], plain[0]) > 1e-2


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_feddyn_refuses_an_alpha_it_cannot_divide_by(alpha: float) -> None:
    with pytest.raises(FedgeoError, match=r"^method\.alpha=\S+: must be above 0"):
        FedDyn(alpha=alpha)


def test_scaffold_with_one_client_is_sgd() -> None:
    ours = classification(Scaffold(server_lr=1), clients=[9], dtype=torch.float64).run([[0]] * 10)
    plain = classification(FedAvg(), clients=[9], dtype=torch.float64).run([[0]] * 10)
    assert max(distance(a, b) for a, b in zip(ours, plain, strict=True)) < 1e-13


def test_moons_first_participation_is_fedavg() -> None:
    ours = classification(Moon(mu=5.0), dtype=torch.float64).run([[0, 1, 2]] * 2)
    plain = classification(FedAvg(), dtype=torch.float64).run([[0, 1, 2]] * 2)
    assert distance(ours[0], plain[0]) < 1e-13
    assert distance(ours[1], plain[1]) > 1e-3


def test_moon_starts_from_a_head_at_zero() -> None:
    federation = classification(Moon())
    federation.weights = {name: torch.zeros_like(w) for name, w in federation.weights.items()}
    history = federation.run([[0], [0, 1], [0, 1, 2]])
    assert all(torch.isfinite(w).all() for w in history[-1].values())
    assert distance(history[0], history[-1]) > 1e-3


def test_a_class_that_nobody_ever_held_has_no_prototype_and_no_penalty() -> None:
    federation = classification(FedProto(lambda_=3.0))
    federation.clients = [replace(c, y=c.y.clamp(max=1)) for c in federation.clients]
    federation.run(PLAN)
    assert federation.server["known"].tolist() == [1.0, 1.0, 0.0]
    assert federation.server["prototype"][2].tolist() == [0.0, 0.0, 0.0]
    local = Local(federation.weights, federation.server)
    x, y = federation.clients[0].x, torch.full((9,), 2)
    forward = stacked_linear
    penalised = FedProto(lambda_=3.0).loss(forward, federation.weights, x, y, local)
    assert torch.equal(penalised, FedAvg().loss(forward, federation.weights, x, y, local))


def test_a_class_that_no_participant_holds_keeps_its_prototype() -> None:
    federation = classification(FedProto())
    federation.run([[0, 1, 2]])
    before = federation.server["prototype"][2]
    federation.clients = [replace(c, y=c.y.clamp(max=1)) for c in federation.clients]
    federation.run([[0, 1, 2]])
    assert federation.server["known"].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(federation.server["prototype"][2], before)


def test_fedproto_acts_on_the_hidden_layer_where_there_is_one() -> None:
    federation = classification(FedProto(), hidden=6)
    federation.run([[0, 1, 2]])
    assert federation.server["prototype"].shape == (3, 6)
    assert (federation.server["prototype"] >= 0).all()  # means of relu outputs


def test_fedntd_refuses_two_classes() -> None:
    weights = {"linear.weight": torch.zeros(2, 5), "linear.bias": torch.zeros(2)}
    with pytest.raises(FedgeoError, match="at least 3 classes, not 2"):
        FedNTD().loss(stacked_linear, weights, torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64), Local(weights))


def test_fedntd_stays_finite_where_the_classes_are_far_apart() -> None:
    weights = {
        "linear.weight": (1e4 * torch.eye(4, 5)).requires_grad_(),
        "linear.bias": torch.zeros(4, requires_grad=True),
    }
    local = Local({name: -w.detach() for name, w in weights.items()})
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    loss = FedNTD(tau=0.1).loss(stacked_linear, weights, x, torch.tensor([0, 1, 2, 3, 0, 1]), local)
    gradients = torch.autograd.grad(loss.mean(), list(weights.values()))
    assert all(torch.isfinite(value).all() for value in (loss, *gradients))


# --- a stack of clients ---------------------------------------------------------------------------------------------


def stacked_linear(weights: Weights, x: Tensor) -> Output:
    """A linear head for weights (..., C, p) and x (..., B, p)."""
    logits = x @ weights["linear.weight"].mT + weights["linear.bias"].unsqueeze(-2)
    return Output(logits, logits)


def random_weights(*leading: int, generator: torch.Generator) -> Weights:
    return {
        "linear.weight": torch.randn(*leading, 3, 5, generator=generator, dtype=torch.float64),
        "linear.bias": torch.randn(*leading, 3, generator=generator, dtype=torch.float64),
    }


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        FedProx(mu=0.3),
        FedAvgM(),
        FedOpt(),
        Scaffold(),
        Moon(),
        FedDyn(),
        FedProto(),
        FedNTD(beta=0.7, tau=2.0),
    ],
    ids=lambda a: type(a).__name__,
)
def test_a_stack_of_clients_equals_one_after_the_other(algorithm: Algorithm) -> None:
    g = torch.Generator().manual_seed(0)
    clients, batch = 4, 7
    start, weights = random_weights(generator=g), random_weights(clients, generator=g)
    x = torch.randn(clients, batch, 5, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (clients, batch), generator=g)
    auxiliary = algorithm.auxiliary(algorithm.server_state(start))
    auxiliary = {name: torch.randn(v.shape, generator=g, dtype=v.dtype) for name, v in auxiliary.items()}
    if isinstance(algorithm, FedProto):
        auxiliary = {
            "prototype": torch.randn(3, 3, generator=g, dtype=torch.float64),
            "known": torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
        }
    state = random_weights(clients, generator=g) if algorithm.client_state(start) else {}

    def direction(weights: Weights, x: Tensor, y: Tensor, local: Local) -> tuple[Tensor, Weights]:
        weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
        loss = algorithm.loss(stacked_linear, weights, x, y, local)
        gradients = torch.autograd.grad(loss.mean(-1).sum(), list(weights.values()))
        with torch.no_grad():
            corrected = algorithm.correct(dict(zip(weights, gradients, strict=True)), weights, local)
        return loss.detach(), corrected

    losses, directions = direction(weights, x, y, Local(start, auxiliary, state))
    assert losses.shape == (clients, batch)
    for k in range(clients):
        alone = Local(start, auxiliary, {name: v[k] for name, v in state.items()})
        loss, one = direction({name: w[k] for name, w in weights.items()}, x[k], y[k], alone)
        torch.testing.assert_close(losses[k], loss, rtol=1e-10, atol=1e-10)
        for name in one:
            torch.testing.assert_close(directions[name][k], one[name], rtol=1e-10, atol=1e-10)


# --- heterogeneous quadratics ---------------------------------------------------------------------------------------


class Point(Model):
    """f(x) = x . w, so that the squared loss of a client is a quadratic of w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Output:
        return Output(x @ self.w, x @ self.w)


class Squared:
    """Half the squared error in place of the cross-entropy."""

    def loss(self, forward: Forward, weights: Weights, x: Tensor, y: Tensor, local: Local) -> Tensor:
        return 0.5 * (forward(weights, x).logits - y).square()


class SquaredAvg(Squared, FedAvg):
    pass


class SquaredScaffold(Squared, Scaffold):
    pass


class SquaredDyn(Squared, FedDyn):
    pass


@dataclass(frozen=True)
class Undivided(SquaredScaffold):
    """SCAFFOLD that divides by T eta in spite of momentum."""

    def finish(self, trained: Trained, local: Local) -> tuple[Weights, Weights]:
        return super().finish(replace(trained, momentum=0.0), local)


def quadratic(algorithm: Algorithm, steps: int, momentum: float, lr: float = 0.1) -> tuple[Federation, Tensor]:
    """Three clients, each with a quadratic of its own minimum and curvature; and the minimum of their sum."""
    g = torch.Generator().manual_seed(3)
    clients = [
        FixedOrder(
            torch.randn(6, 3, generator=g, dtype=torch.float64), 3 * torch.randn(6, generator=g, dtype=torch.float64)
        )
        for _ in range(3)
    ]
    optimum = torch.linalg.lstsq(torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])).solution
    settings = LocalSettings(steps, 6, "sgd", lr, momentum, 0.0)
    return Federation(algorithm, Point, clients, settings, Point().export()), optimum


def error(algorithm: Algorithm, rounds: Sequence[Sequence[int]], steps: int, momentum: float, lr: float) -> float:
    federation, optimum = quadratic(algorithm, steps, momentum, lr)
    federation.run(rounds)
    return distance(federation.weights, {"w": optimum})


EVERYONE = [[0, 1, 2]] * 100
SOME = [[r % 3, (r + 1) % 3] for r in range(150)]


@pytest.mark.parametrize("rounds", [EVERYONE, SOME], ids=["all", "two of three"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_and_feddyn_reach_the_optimum_that_fedavg_misses(momentum: float, rounds: list[list[int]]) -> None:
    lr = 0.1 * (1 - momentum)
    assert error(SquaredAvg(), rounds, 20, momentum, lr) > 1e-2
    assert error(SquaredScaffold(server_lr=1.0), rounds, 20, momentum, lr) < 1e-8
    assert error(SquaredDyn(alpha=0.5), rounds, 20, momentum, lr) < 1e-8


@pytest.mark.parametrize("steps", [10, 20, 30])
def test_scaffold_does_not_diverge_under_momentum(steps: int) -> None:
    before = error(SquaredScaffold(server_lr=1.0), [], steps, 0.9, 0.01)
    assert error(SquaredScaffold(server_lr=1.0), EVERYONE, steps, 0.9, 0.01) < 1e-6 * before
    assert error(Undivided(server_lr=1.0), EVERYONE[:12], steps, 0.9, 0.01) > 100 * before


@given(st.integers(1, 60), st.floats(0, 0.99))
def test_effective_steps_is_how_far_sgd_goes_along_a_constant_gradient(steps: int, momentum: float) -> None:
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr=0.5, momentum=momentum)
    for _ in range(steps):
        w.grad = torch.ones_like(w)
        sgd.step()
    assert effective_steps(steps, momentum) == pytest.approx(-w.item() / 0.5, rel=1e-9)


def test_effective_steps_without_momentum_is_their_number() -> None:
    assert effective_steps(17, 0.0) == 17
