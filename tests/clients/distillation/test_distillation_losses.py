"""KIP and RKIP against the formulas of Loo et al. 2024 (section 7, Theorem 2, appendix D), in float64."""

import pytest
import torch
from torch import nn

from attacks.kernel.empirical import empirical_ntk
from attacks.ntk.objective import AutogradObjective
from clients.distillation.methods import KIP, RKIP

RIDGE = 1e-3


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(x, y=None):
    """A Gaussian kernel: positive definite, and none of the code under test."""
    return torch.exp(-(torch.cdist(x.flatten(1), (x if y is None else y).flatten(1)) ** 2) / 8)


def ridged(matrix):
    return matrix + RIDGE * matrix.trace() / len(matrix) * torch.eye(len(matrix), dtype=torch.float64)


@pytest.fixture
def sets():
    return normal(12, 1, 3, 3, seed=0), normal(12, 2, seed=1), normal(4, 1, 3, 3, seed=2), normal(4, 2, seed=3)


def test_kip_is_the_error_of_kernel_regression(sets):
    x_t, y_t, x_s, y_s = sets
    residual = y_t - kernel(x_t, x_s) @ torch.linalg.inv(ridged(kernel(x_s))) @ y_s
    assert KIP(kernel, x_t, y_t, RIDGE)(x_s, y_s).item() == pytest.approx((residual**2).sum().item(), rel=1e-10)


def test_rkip_is_the_paper_s_two_terms(sets):
    x_t, y_t, x_s, y_s = sets
    k_tt, k_ts, k_ss = torch.linalg.inv(ridged(kernel(x_t))), kernel(x_t, x_s), kernel(x_s)
    duals = torch.linalg.inv(ridged(k_ss)) @ y_s
    residual = y_t - k_ts @ duals
    fit = torch.trace(residual.T @ k_tt @ residual)
    spread = torch.trace(duals.T @ (k_ss - k_ts.T @ k_tt @ k_ts) @ duals)
    assert RKIP(kernel, x_t, y_t, RIDGE)(x_s, y_s).item() == pytest.approx((fit + spread).item(), rel=1e-10)


def test_rkip_of_the_training_set_itself_is_zero(sets):
    x_t, y_t, _, _ = sets
    assert RKIP(kernel, x_t, y_t, 1e-12)(x_t, y_t).item() == pytest.approx(0, abs=1e-8)


def test_theorem_2_rkip_is_the_reconstruction_loss():
    """Explicit features: ‖Δθ − Σ_S α_S ∇f(x_S)‖² of a network, Δθ that of linearized training, by autograd.

    Exact at any width where y − f_θ₀ takes the place of y: the kernel is then that of the same features.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    x_t, x_s = normal(8, 1, 3, 3, seed=0), normal(3, 1, 3, 3, seed=1)
    y_t, y_s = (normal(len(x), 1, seed=2).sign() - model(x).detach() for x in (x_t, x_s))

    def ntk(x, y=None):
        return empirical_ntk(model, state, x, y)

    def gradient_sum(x, duals):
        return AutogradObjective(model, state, [state]).gradient_sum(x, duals[None], None)

    delta = gradient_sum(x_t, torch.linalg.solve(ntk(x_t), y_t))
    reconstruction = AutogradObjective(model, delta, [state])
    duals = torch.linalg.solve(ntk(x_s), y_s)
    expected = reconstruction.loss(x_s, duals[None], None).item()
    assert expected > 0.1
    assert RKIP(ntk, x_t, y_t, 1e-14)(x_s, y_s).item() == pytest.approx(expected, rel=1e-8)
