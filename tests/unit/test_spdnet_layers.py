"""SPDnet's layers: values and gradients of ReEig, LogEig and BiMap against high-precision differences."""

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from app.models.spdnet import bimap, re_eig, re_log_eig
from tests.matrices import covariances, differences, normal, with_eigenvalues

EPSILON = 0.1


def relative_error(a: Tensor, b: Tensor) -> float:
    """The distance of a from b by the size of b; where b is 0 but for the rounding of 60 digits, the distance
    itself."""
    distance, size = float(torch.linalg.norm(a - b)), float(torch.linalg.norm(b))
    return distance / size if size > 1e-30 else distance


# ------------------------------------------------ ReEig, ReEig + LogEig


def exact_gradient(s: Tensor, g: Tensor, epsilon: float, logarithm: bool) -> Tensor:
    """The gradient of <g, f(S)> over symmetric S, from differences taken with 60 digits."""
    k = s.shape[-1]

    def value(m: mpmath.matrix) -> mpmath.mpf:
        values, vectors = mpmath.eigsy(m)
        total = mpmath.mpf(0)
        for i in range(k):
            image = max(values[i], mpmath.mpf(epsilon))
            column = vectors[:, i]
            total += (mpmath.log(image) if logarithm else image) * (column.T * weights * column)[0]
        return total

    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -25
        base, weights = mpmath.matrix(s.tolist()), mpmath.matrix(g.tolist())
        result = torch.zeros(k, k, dtype=torch.float64)
        for i in range(k):
            for j in range(i + 1):
                up, down = base.copy(), base.copy()
                up[i, j] += h
                down[i, j] -= h
                if i != j:
                    up[j, i] += h
                    down[j, i] -= h
                slope = float((value(up) - value(down)) / (2 * h))
                result[i, j] = result[j, i] = slope if i == j else slope / 2
        return result


SPECTRA = {
    "generic": [0.01, 0.5, 2.0, 7.0],
    "none clamped": [0.3, 0.5, 2.0, 7.0],
    "all clamped": [1e-6, 1e-3, 0.02, 0.09],
    "repeated": [0.02, 0.02, 3.0, 3.0],
    "identity": [2.0, 2.0, 2.0, 2.0],
    "nearly repeated": [1.0, 1.0 + 1e-9, 1.0 + 3e-13, 2.0],
    "nearly repeated, small beside large": [0.3, 0.3 * (1 + 1e-7), 1e4, 1e4 * (1 + 1e-10)],
    "rank-deficient": [0.0, 0.0, 1.0, 4.0],
    "indefinite by rounding": [-1e-16, 1e-16, 1.0, 1.0],
    "both sides of epsilon": [EPSILON * (1 - 1e-6), EPSILON * (1 + 1e-6), 1.0, 2.0],
    "wide": [0.2, 30.0, 4e3, 5e5],
}


@pytest.mark.parametrize("logarithm", [True, False], ids=["ReEig + LogEig", "ReEig"])
@pytest.mark.parametrize("case", SPECTRA)
def test_spectral_gradients_are_exact(case: str, logarithm: bool) -> None:
    values = SPECTRA[case]
    s = 2.0 * torch.eye(4, dtype=torch.float64) if case == "identity" else with_eigenvalues(values)
    s.requires_grad_()
    g = normal(4, 4, seed=1)
    (gradient,) = torch.autograd.grad(((re_log_eig if logarithm else re_eig)(s, EPSILON) * g).sum(), s)
    expected = exact_gradient(s.detach(), g, EPSILON, logarithm)
    assert torch.isfinite(gradient).all()
    assert relative_error(gradient, expected) < 1e-7
    if case == "all clamped":
        assert torch.count_nonzero(gradient) == 0


def test_autograd_through_eigh_would_be_nan_where_eigenvalues_repeat() -> None:
    s = (2.0 * torch.eye(4, dtype=torch.float64)).requires_grad_()
    values, vectors = torch.linalg.eigh(s)
    naive = (vectors * values.clamp(min=EPSILON).log()) @ vectors.mT
    (gradient,) = torch.autograd.grad((naive * normal(4, 4, seed=1)).sum(), s)
    assert not torch.isfinite(gradient).all()


def test_a_large_trial_does_not_change_what_the_others_get() -> None:
    batch = torch.stack([with_eigenvalues(v, seed=i) for i, v in enumerate(SPECTRA.values())])
    batch[3] *= 100
    batch[4] *= 1e4
    batch.requires_grad_()
    g = normal(*batch.shape, seed=2)
    (gradient,) = torch.autograd.grad((re_log_eig(batch, EPSILON) * g).sum(), batch)
    for i in range(len(batch)):
        expected = exact_gradient(batch[i].detach(), g[i], EPSILON, True)
        assert relative_error(gradient[i], expected) < 1e-7


def test_spectral_values_against_mpmath() -> None:
    s = with_eigenvalues([1e-4, 0.5, 2.0, 7.0])
    with mpmath.workdps(40):
        values, vectors = mpmath.eigsy(mpmath.matrix(s.tolist()))
        logs = mpmath.diag([mpmath.log(max(v, mpmath.mpf(EPSILON))) for v in values])
        expected = np.array((vectors * logs * vectors.T).tolist(), dtype=float)
    torch.testing.assert_close(re_log_eig(s, EPSILON), torch.from_numpy(expected), rtol=0, atol=1e-13)
    torch.testing.assert_close(re_eig(s, EPSILON), torch.matrix_exp(re_log_eig(s, EPSILON)), rtol=0, atol=1e-12)


def test_spectral_functions_refuse_second_derivatives() -> None:
    s = with_eigenvalues([0.5, 1.0, 2.0]).requires_grad_()
    (first,) = torch.autograd.grad((re_log_eig(s, EPSILON) ** 3).sum(), s, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


# ---------------------------------------------------------------- BiMap


@pytest.mark.parametrize("stacked", [False, True])
def test_bimap_and_its_gradients(stacked: bool) -> None:
    lead = (2,) if stacked else ()
    s = covariances(2 * 4, 5, seed=0).reshape(*lead, -1, 5, 5).requires_grad_()
    w = normal(*lead, 5, 3, seed=1).requires_grad_()
    g = normal(*s.shape[:-2], 3, 3, seed=2)

    def plain(s: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("...pk,...bpq,...ql->...bkl", w, s, w)

    torch.testing.assert_close(bimap(s, w), plain(s, w), rtol=1e-13, atol=1e-13)
    grad_s, grad_w = torch.autograd.grad((bimap(s, w) * g).sum(), (s, w))
    numeric_w = differences(lambda v: (plain(s.detach(), v) * g).sum(), w.detach(), 1e-3)
    numeric_s = differences(lambda v: (plain(v, w.detach()) * g).sum(), s.detach(), 1e-3)
    numeric_s = 0.5 * (numeric_s + numeric_s.mT)  # the gradient among symmetric matrices
    assert torch.linalg.norm(grad_w - numeric_w) < 1e-9 * torch.linalg.norm(numeric_w)
    assert torch.linalg.norm(grad_s - numeric_s) < 1e-9 * torch.linalg.norm(numeric_s)


def test_bimap_of_one_matrix() -> None:
    s, w = covariances(1, 5, seed=0)[0], normal(5, 3, seed=1)
    torch.testing.assert_close(bimap(s, w), w.mT @ s @ w)
