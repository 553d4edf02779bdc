"""Stiefel and SPD manifolds: formulas against independent computations, and the laws of the two averages."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyriemann.geometry.mean import mean_riemann
from pyriemann.geometry.tangentspace import log_map_riemann
from torch import Tensor

from app.common.errors import FedgeoError
from app.geometry.spd import KarcherMean, karcher_step, spectral, tangent_sum
from app.geometry.stiefel import (
    distance_to_stiefel,
    lift,
    proj_avg,
    project,
    random_stiefel,
    retract,
    rl_avg,
    uf,
)
from tests.matrices import generator, normal

SHAPES = st.sampled_from([(4, 1), (5, 3), (6, 6), (12, 7), (64, 18)])
SEEDS = st.integers(0, 2**32 - 1)


def near(w: Tensor, size: float, seed: int) -> Tensor:
    """A point of Stiefel about ``size`` away from w."""
    tangent = project(w, normal(*w.shape, seed=seed))
    return retract(w, size * tangent / torch.linalg.matrix_norm(tangent))


def clients(p: int, k: int, size: float, seed: int, count: int = 5) -> tuple[Tensor, list[Tensor]]:
    w = random_stiefel(p, k, generator(seed))
    return w, [near(w, size, seed=seed + 1 + i) for i in range(count)]


def spd(n: int, c: int, seed: int, spread: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, c, 4 * c)) * np.exp(spread * rng.normal(size=(n, c, 1)))
    return x @ x.mT / (4 * c)


# ------------------------------------------------------------------ Stiefel


@settings(max_examples=25)
@given(SHAPES, SEEDS)
def test_uf_is_scipys_polar_factor(shape: tuple[int, int], seed: int) -> None:
    a = normal(*shape, seed=seed)
    torch.testing.assert_close(uf(a), torch.from_numpy(scipy.linalg.polar(a.numpy())[0]), rtol=1e-9, atol=1e-9)
    assert distance_to_stiefel(uf(a)) < 1e-12


def test_uf_takes_batches() -> None:
    a = normal(2, 3, 6, 4, seed=0)
    torch.testing.assert_close(uf(a)[1, 2], uf(a[1, 2]), rtol=0, atol=1e-14)


def test_uf_of_a_rank_deficient_matrix_is_refused_by_name() -> None:
    a = normal(6, 3, seed=0)
    a[:, 2] = a[:, 0] - a[:, 1]
    with pytest.raises(FedgeoError, match=r"stiefel\.1: .*rank"):
        uf(a, name="stiefel.1")


@pytest.mark.parametrize("case", ["generic", "orthonormal", "repeated", "ill-conditioned", "square"])
def test_adjoint_of_uf_against_finite_differences(case: str) -> None:
    p, k = (5, 5) if case == "square" else (7, 4)
    w, r = random_stiefel(p, k, generator(1)), random_stiefel(k, k, generator(2))
    singular = {
        "generic": [2.0, 1.5, 0.7, 0.4],
        "orthonormal": [1.0] * k,  # where autograd through the SVD gives NaN
        "repeated": [2.0, 2.0, 0.5, 0.5],
        "ill-conditioned": [10.0, 1.0, 1.0, 0.05],
        "square": [3.0, 1.0, 1.0, 1.0, 0.5],
    }[case]
    a = (w * torch.tensor(singular, dtype=torch.float64) @ r.mT).requires_grad_()
    g = normal(p, k, seed=3)
    (uf(a) * g).sum().backward()
    numeric = torch.zeros_like(a)
    h = 1e-5 * min(singular)
    for i in range(p):
        for j in range(k):
            e = torch.zeros(p, k, dtype=torch.float64)
            e[i, j] = h
            up, down = (torch.from_numpy(scipy.linalg.polar((a.detach() + s * e).numpy())[0]) for s in (1, -1))
            numeric[i, j] = ((up - down) * g).sum() / (2 * h)
    assert a.grad is not None
    assert torch.linalg.norm(a.grad - numeric) < 1e-7 * torch.linalg.norm(numeric)


def test_autograd_through_the_svd_would_be_nan_at_the_first_step() -> None:
    a = random_stiefel(6, 3, generator(0)).requires_grad_()
    u, _, vh = torch.linalg.svd(a, full_matrices=False)
    (naive,) = torch.autograd.grad(((u @ vh) * normal(6, 3, seed=1)).sum(), a)
    (ours,) = torch.autograd.grad((uf(a) * normal(6, 3, seed=1)).sum(), a)
    assert not torch.isfinite(naive).all() or torch.linalg.norm(naive - ours) > 1e-3
    assert torch.isfinite(ours).all()


def test_uf_refuses_second_derivatives_instead_of_getting_them_wrong() -> None:
    a = normal(4, 2, seed=0).requires_grad_()
    (first,) = torch.autograd.grad((uf(a) ** 3).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@settings(max_examples=25)
@given(SHAPES, SEEDS)
def test_projection_is_orthogonal_onto_the_tangent_space(shape: tuple[int, int], seed: int) -> None:
    w, x, y = (
        random_stiefel(*shape, generator(seed)),
        normal(*shape, seed=seed + 1),
        normal(*shape, seed=seed + 2),
    )
    t = project(w, x)
    assert torch.linalg.norm(w.mT @ t + t.mT @ w) < 1e-12
    torch.testing.assert_close(project(w, t), t, rtol=0, atol=1e-12)
    assert float((project(w, x) * y).sum()) == pytest.approx(float((x * project(w, y)).sum()), abs=1e-10)


@settings(max_examples=25)
@given(SHAPES, SEEDS)
def test_retraction_lands_on_the_manifold_and_agrees_with_the_identity_to_first_order(
    shape: tuple[int, int], seed: int
) -> None:
    w = random_stiefel(*shape, generator(seed))
    x = project(w, normal(*shape, seed=seed + 1))
    assert distance_to_stiefel(retract(w, 10 * x)) < 1e-12
    assert torch.linalg.norm(retract(w, 1e-4 * x) - w - 1e-4 * x) < 1e-8 * (1 + float((x**2).sum()))


@settings(max_examples=25)
@given(SHAPES, SEEDS)
def test_lifting_inverts_the_retraction_to_first_order(shape: tuple[int, int], seed: int) -> None:
    w = random_stiefel(*shape, generator(seed))
    x = project(w, normal(*shape, seed=seed + 1))
    lifted = lift(w, retract(w, 1e-4 * x))
    assert torch.linalg.norm(lifted - 1e-4 * x) < 1e-8 * (1 + float((x**2).sum()) ** 1.5)
    assert torch.linalg.norm(w.mT @ lifted + lifted.mT @ w) < 1e-12


def test_random_stiefel_is_repeatable_leaves_the_global_generator_alone_and_is_uniform() -> None:
    before = torch.get_rng_state()
    torch.testing.assert_close(random_stiefel(8, 3, generator(5)), random_stiefel(8, 3, generator(5)), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)
    g = generator(0)
    draws = torch.stack([random_stiefel(5, 2, g) for _ in range(4000)])
    assert draws.mean(0).abs().max() < 0.03
    assert ((draws**2).mean(0) - 1 / 5).abs().max() < 0.02  # Haar: every entry has variance 1/p
    with pytest.raises(FedgeoError, match="between 1 and 3"):
        random_stiefel(3, 4, g)


# ----------------------------------------------------------------- averages


@settings(max_examples=30)
@given(SHAPES, SEEDS, st.floats(1e-3, 1.0))
def test_averages_lie_on_the_manifold(shape: tuple[int, int], seed: int, size: float) -> None:
    w, ws = clients(*shape, size, seed)
    for mean in (proj_avg(ws), rl_avg(w, ws), proj_avg(ws, [1, 2, 3, 4, 5]), rl_avg(w, ws, [1, 2, 3, 4, 5])):
        assert distance_to_stiefel(mean) < 1e-12
        assert mean.dtype == torch.float64


@settings(max_examples=30)
@given(SHAPES, SEEDS)
def test_equal_inputs_are_fixed_points(shape: tuple[int, int], seed: int) -> None:
    w = random_stiefel(*shape, generator(seed))
    assert torch.linalg.norm(proj_avg([w] * 7) - w) < 1e-12
    assert torch.linalg.norm(rl_avg(w, [w] * 7) - w) < 1e-12


@settings(max_examples=30)
@given(SHAPES, SEEDS, st.floats(1e-2, 1.0))
def test_averages_turn_with_their_inputs(shape: tuple[int, int], seed: int, size: float) -> None:
    w, ws = clients(*shape, size, seed)
    q = random_stiefel(shape[0], shape[0], generator(seed + 100))
    turned = [q @ v for v in ws]
    assert torch.linalg.norm(proj_avg(turned) - q @ proj_avg(ws)) < 1e-11
    assert torch.linalg.norm(rl_avg(q @ w, turned) - q @ rl_avg(w, ws)) < 1e-11


@settings(max_examples=20)
@given(SHAPES, SEEDS)
def test_averages_do_not_depend_on_the_clients_order_or_the_weights_scale(shape: tuple[int, int], seed: int) -> None:
    w, ws = clients(*shape, 0.5, seed)
    shares = [1.0, 2.0, 3.0, 4.0, 5.0]
    for average in (lambda v, s: proj_avg(v, s), lambda v, s: rl_avg(w, v, s)):
        base = average(ws, shares)
        assert torch.linalg.norm(average(ws[::-1], shares[::-1]) - base) < 1e-13
        assert torch.linalg.norm(average(torch.stack(ws), [30 * s for s in shares]) - base) < 1e-13
        doubled = average([*ws, ws[0]], [0.5, *shares[1:], 0.5])
        assert torch.linalg.norm(doubled - base) < 1e-13


def test_proj_avg_is_the_nearest_point_to_the_mean_and_its_fixed_point_equation_holds() -> None:
    _, ws = clients(7, 3, 0.8, seed=4)
    w, mean = proj_avg(ws), torch.stack(ws).mean(0)
    symmetric = w.mT @ mean  # at the maximum of <W, mean> this is symmetric and positive
    torch.testing.assert_close(symmetric, symmetric.mT, rtol=0, atol=1e-13)
    assert torch.linalg.eigvalsh(symmetric).min() > 0
    best = torch.linalg.norm(mean - w)
    assert all(torch.linalg.norm(mean - near(w, 0.05, seed=s)) > best for s in range(50))


def test_rl_avg_follows_equation_11_written_out() -> None:
    w, ws = clients(7, 3, 0.8, seed=5)
    n = w.numpy()
    total = np.zeros_like(n)
    for v in ws:
        x = v.numpy() - n
        total += x - n @ (n.T @ x + x.T @ n) / 2
    expected = scipy.linalg.polar(n + total / len(ws))[0]
    torch.testing.assert_close(rl_avg(w, ws), torch.from_numpy(expected), rtol=0, atol=1e-13)


def test_rl_avg_tends_to_the_mean_for_close_points() -> None:
    distances = []
    for size in (1e-1, 1e-2, 1e-3):
        w, ws = clients(12, 4, size, seed=6)
        distances.append(float(torch.linalg.norm(rl_avg(w, ws) - torch.stack(ws).mean(0))) / size)
        assert torch.linalg.norm(rl_avg(w, ws) - proj_avg(ws)) < size**2
    assert distances[1] < distances[0] / 5
    assert distances[2] < distances[1] / 5


@pytest.mark.parametrize("tilt", [0.0, 1e-6, 1e-4])
def test_a_mean_near_rank_loss_is_refused_by_layer_name(tilt: float) -> None:
    w = random_stiefel(6, 3, generator(0))
    flipped = near(w, tilt, seed=1) if tilt else w
    with pytest.raises(FedgeoError, match=r"stiefel\.0: .*cancel out.*same weights"):
        proj_avg([w, -flipped], name="stiefel.0")
    with pytest.raises(FedgeoError, match=r"stiefel\.0: .*cancel out"):
        rl_avg(w, [w, -flipped], name="stiefel.0")


def test_bad_inputs_of_an_average_are_named() -> None:
    w, ws = clients(5, 2, 0.1, seed=0)
    broken = [*ws[:3], torch.full_like(w, math.nan), ws[4]]
    with pytest.raises(FedgeoError, match=r"stiefel\.0: matrix 3 of 5 .*finite"):
        proj_avg(broken, name="stiefel.0")
    for weights in ([1.0, 2.0], [1, 1, 1, 1, -1], [0.0] * 5, [1, 1, 1, 1, math.nan]):
        with pytest.raises(FedgeoError, match="expected 5 weights"):
            rl_avg(w, ws, weights)


# ---------------------------------------------------------------------- SPD


def test_spectral_functions_against_scipy() -> None:
    s = spd(1, 6, seed=0)[0]
    torch.testing.assert_close(spectral(torch.from_numpy(s), torch.sqrt), torch.from_numpy(scipy.linalg.sqrtm(s).real))
    torch.testing.assert_close(spectral(torch.from_numpy(s), torch.exp), torch.from_numpy(scipy.linalg.expm(s)))


def test_tangent_sum_is_pyriemanns_logarithm_in_whitened_coordinates() -> None:
    covariances = spd(9, 5, seed=1)
    m = covariances.mean(0)
    ours = tangent_sum(torch.from_numpy(covariances), torch.from_numpy(m))
    root = np.linalg.inv(scipy.linalg.sqrtm(m).real)
    theirs = (root @ log_map_riemann(covariances, m, C12=True) @ root).sum(0)
    torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=0, atol=1e-10)


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_federated_karcher_steps_reach_pyriemanns_mean(spread: float) -> None:
    pooled = spd(40, 6, seed=2, spread=spread)
    sites = [torch.from_numpy(part) for part in np.split(pooled, [5, 13])]  # sites of 5, 8 and 27 trials
    mean = KarcherMean(torch.from_numpy(pooled).mean(0))
    rounds = 0
    while mean.norm > 1e-10 and rounds < 25:
        mean = karcher_step(mean, [tangent_sum(site, mean.point) for site in sites], [len(site) for site in sites])
        rounds += 1
    assert rounds < 25
    theirs = torch.from_numpy(mean_riemann(pooled, tol=1e-13, maxiter=500))
    assert torch.linalg.norm(mean.point - theirs) < 1e-8 * torch.linalg.norm(theirs)


def test_full_steps_would_overshoot_on_widely_spread_covariances() -> None:
    pooled = torch.from_numpy(spd(40, 6, seed=2, spread=1.5))
    mean = KarcherMean(pooled.mean(0))
    for _ in range(60):
        mean = karcher_step(KarcherMean(mean.point), [tangent_sum(pooled, mean.point)], [40])
    assert mean.norm > 0.1


def test_one_covariance_is_its_own_mean_after_one_step() -> None:
    a, b = torch.from_numpy(spd(2, 4, seed=4))
    reached = karcher_step(KarcherMean(a), [tangent_sum(b[None], a)], [1])
    torch.testing.assert_close(reached.point, b, rtol=1e-10, atol=1e-10)
    stays = karcher_step(reached, [tangent_sum(b[None], reached.point)], [1])
    assert stays.norm < 1e-12
    torch.testing.assert_close(stays.point, b, rtol=1e-10, atol=1e-10)


def test_the_mean_of_two_is_half_way_along_their_geodesic() -> None:
    pair = torch.from_numpy(spd(2, 4, seed=4))
    mean = KarcherMean(pair.mean(0))
    for _ in range(30):
        mean = karcher_step(mean, [tangent_sum(s[None], mean.point) for s in pair], [1, 1])
    a, b = pair.numpy()
    root = scipy.linalg.sqrtm(a).real
    inverse = np.linalg.inv(root)
    half = root @ scipy.linalg.sqrtm(inverse @ b @ inverse).real @ root
    torch.testing.assert_close(mean.point, torch.from_numpy(half), rtol=1e-9, atol=1e-9)


def test_singular_covariances_and_mismatched_counts_are_refused() -> None:
    covariances = spd(3, 4, seed=5)
    centre = np.eye(4) - 0.25
    covariances[1] = centre @ covariances[1] @ centre
    with pytest.raises(FedgeoError, match="covariance 1 of 3 is not positive definite"):
        tangent_sum(torch.from_numpy(covariances), torch.eye(4, dtype=torch.float64))
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.raises(FedgeoError, match="count"):
        karcher_step(KarcherMean(eye), [eye], [])
