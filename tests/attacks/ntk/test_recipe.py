"""The recipe as published (Loo et al. 2024, with the mean of the authors' code), and the kernel along the path."""

import pytest
import torch
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation, Reconstruction, get_attack
from attacks.interface.observation import State
from attacks.ntk.attack import tangent_points
from attacks.ntk.objective import inverse_temperature, make_objective
from tests.attacks.conftest import client, digits, generator, mlp, state_of

PUBLISHED = {"kernel": "final", "learning_rate": 0.02, "dual_normalization": "mean", "scale_duals": False}
PUBLISHED |= {"schedule": "constant", "patience": 0}
MEAN = (0.3,)
KERNELS = ("initial", "final", "hybrid", "path")


def draws(shape: tuple[int, ...], kernels: int, outputs: int) -> tuple[Tensor, Tensor]:
    """What the attack starts from: images N(0, 0.2²) and duals U(−½, ½), in float64."""
    source = generator()
    images = 0.2 * torch.randn(shape, generator=source, dtype=torch.float64)
    return images, torch.rand((kernels, shape[0], outputs), generator=source, dtype=torch.float64) - 0.5


def in_order_of_start(found: Reconstruction, images: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates and duals as they were before they were ranked: none has moved far from where it started."""
    order = torch.cdist(images.flatten(1), found.images.double().flatten(1)).argmin(1)
    return found.images[order].double(), found.duals[:, order].double()


@pytest.mark.parametrize(("normalization", "unit"), [("mean", 1 / (3 * 2)), ("sum", 1.0)])
def test_one_step_by_hand(normalization, unit):
    """f(x) = Wx has ∇_W f^k = e_k xᵀ, and the first step of Adam is the sign of the gradient times the step size."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)).double()
    initial = state_of(model)
    delta = torch.tensor([[0.1, -0.2, 0.3, 0.1], [0.2, 0.1, -0.1, 0.4]], dtype=torch.float64)
    observation = Observation(model, ((initial, {"1.weight": initial["1.weight"] + delta}),), (1, 2, 2))
    images, duals = draws((3, 1, 2, 2), 1, 2)
    residual = unit * torch.einsum("jk,jd->kd", duals[0], images.flatten(1)) - delta
    options = {"iterations": 1, "num_candidates": 3, "precision": "float64", "range_penalty": 0.0}
    attack = get_attack("ntk", **{**PUBLISHED, **options, "dual_normalization": normalization})
    found_images, found_duals = in_order_of_start(
        attack.run(observation, Knowledge(num_private=2, pixel_mean=MEAN), generator()), images
    )
    expected_images = images.flatten(1) - 0.02 * (duals[0] @ residual).sign()
    expected_duals = unit * (duals[0] - 0.02 * (images.flatten(1) @ residual.T).sign())
    assert torch.allclose(found_images.flatten(1), expected_images, atol=1e-6)
    assert torch.allclose(found_duals[0], expected_duals, atol=1e-6 * unit)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_mean_is_the_sum_after_a_change_of_variable(batch_size):
    """Twenty steps of torch's Adam on the authors' objective, written as they write it, end at the same images, and at
    duals M·K times as large."""
    observation, knowledge = client(mlp(32, outputs=3).double(), digits(2).double()), Knowledge(2, pixel_mean=MEAN)
    options = {"kernel": "hybrid", "iterations": 20, "batch_size": batch_size, "precision": "float64"}
    attack = get_attack("ntk", **{**PUBLISHED, **options})
    images, duals = (start.requires_grad_() for start in draws((4, 1, 8, 8), 2, 3))
    found_images, found_duals = in_order_of_start(attack.run(observation, knowledge, generator()), images.detach())
    adam = torch.optim.Adam([images, duals], lr=0.02)
    for i in range(20):
        rest = observation.delta()
        for view, dual in zip((observation.initial, observation.final), duals, strict=True):
            leaves = {name: value.clone().requires_grad_() for name, value in view.items()}
            softplus = nn.Softplus(inverse_temperature(i, 20), 700)
            smooth = nn.Sequential(*(softplus if isinstance(m, nn.ReLU) else m for m in observation.model))
            mean = (dual * torch.func.functional_call(smooth, leaves, (images,))).mean()
            gradients = torch.autograd.grad(mean, list(leaves.values()), create_graph=True)
            rest = {name: rest[name] - gradient for name, gradient in zip(leaves, gradients, strict=True)}
        outside = torch.relu(images - 0.7) ** 2 + torch.relu(-0.3 - images) ** 2
        loss = torch.stack([(value**2).sum() for value in rest.values()]).sum() + 0.1 * 4 * outside.mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert torch.allclose(found_images, images, atol=1e-6)
    assert torch.allclose(4 * 3 * found_duals, duals, atol=1e-5)


def test_the_scale_of_the_update_leaves_no_room_for_a_mean():
    with pytest.raises(InputError, match=r"dual_normalization 'mean'.*set scale_duals to false"):
        get_attack("ntk", dual_normalization="mean")


def gradient_sum(model: nn.Module, views: list[State], images: Tensor, duals: Tensor) -> State:
    """Σ_v Σ_j Σ_k α^v_jk ∇f^k(x_j), by autograd."""
    total: State = {}
    for view, dual in zip(views, duals, strict=True):
        leaves = {name: value.detach().clone().requires_grad_() for name, value in view.items()}
        scalar = (dual * torch.func.functional_call(model, leaves, (images,))).sum()
        for name, gradient in zip(leaves, torch.autograd.grad(scalar, list(leaves.values())), strict=True):
            total[name] = total.get(name, 0) + gradient
    return total


def unexplained(model: nn.Module, views: list[State], images: Tensor, delta: State) -> float:
    """The share of ‖Δθ‖² that the best duals leave."""
    flat = torch.cat([delta[name].flatten() for name in delta])
    columns = []
    for index in range(len(views) * len(images) * 2):
        one = torch.zeros(len(views) * len(images) * 2, dtype=torch.float64)
        one[index] = 1
        part = gradient_sum(model, views, images, one.view(len(views), len(images), 2))
        columns.append(torch.cat([part[name].flatten() for name in delta]))
    matrix = torch.stack(columns, 1)
    rest = flat - matrix @ torch.linalg.lstsq(matrix, flat[:, None], driver="gelsd").solution[:, 0]
    return float(rest.square().sum() / flat.square().sum())


def test_the_default_begins_at_both_kernels_with_a_sum_a_quarter_as_long_as_the_update():
    """f(x) = Wx has the gradients e_k xᵀ at θ₀ and at θ_f; a step so small leaves images and duals where they began."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=False)).double()
    initial = state_of(model)
    for factor in (1e-3, 1.0):
        delta = factor * torch.randn(3, 64, generator=generator(), dtype=torch.float64)
        observation = Observation(model, ((initial, {"1.weight": initial["1.weight"] + delta}),), (1, 8, 8))
        attack = get_attack("ntk", iterations=1, learning_rate=1e-9, precision="float64")
        found = attack.run(observation, Knowledge(num_private=4, pixel_mean=MEAN), generator())
        images = found.images.double().flatten(1)
        length = torch.einsum("vjk,jd->kd", found.duals.double(), images).norm()
        assert found.duals.shape == (2, 8, 3)
        assert float(length / delta.norm()) == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize(
    "options", [{"kernel": "final"}, PUBLISHED, {"kernel": "path"}, {**PUBLISHED, "kernel": "path"}]
)
def test_duals_are_those_of_the_sum(options):
    observation = client(mlp(64).double(), digits(3).double())
    found = get_attack("ntk", iterations=60, precision="float64", **options).run(observation, Knowledge(), generator())
    start, end, delta = observation.initial, observation.final, observation.delta()
    middle = {name: start[name] + 0.5 * value for name, value in delta.items()}
    views = [start, middle, end] if options["kernel"] == "path" else [end]
    sums = gradient_sum(observation.model, views, found.images.double(), found.duals.double())
    rest, size = (
        sum(float(value.square().sum()) for value in part)
        for part in ([delta[name] - sums[name] for name in delta], delta.values())
    )
    assert found.duals.shape == (len(views), 6, 10)
    assert found.relative_residual == pytest.approx((rest / size) ** 0.5, rel=1e-6)


def test_an_update_along_the_path_is_explained_by_the_three_kernels():
    """θ_f = θ₀ + Σ_j (∇f_θ₀(x_j) + 4 ∇f_(θ₀+θ_f)/2(x_j) + ∇f_θf(x_j)) α_j / 6, Simpson's rule, solved for θ_f: the
    loss at the true images and duals is 0, where the best duals of one kernel leave 0.10 or 0.045 of ‖Δθ‖² and those
    of both ends 0.0011."""
    model, images = mlp(16, nn.Tanh, outputs=2).double(), digits(4).double()
    initial = state_of(model)
    duals = 0.1 * torch.randn(4, 2, generator=generator(), dtype=torch.float64)
    weights = torch.tensor([1, 4, 1]).view(3, 1, 1) / 6
    final = initial
    for _ in range(60):
        moved = gradient_sum(model, tangent_points("path", initial, final), images, weights * duals)
        final = {name: initial[name] + moved[name] for name in initial}
    delta = {name: final[name] - initial[name] for name in initial}
    size = sum(float(value.square().sum()) for value in delta.values())
    views = tangent_points("path", initial, final)
    for double_backward in (False, True):
        objective = make_objective(model, (1, 8, 8), delta, views, double_backward)
        assert float(objective.loss(images, weights * duals, None)) < 1e-14 * size
    least = {kernel: unexplained(model, tangent_points(kernel, initial, final), images, delta) for kernel in KERNELS}
    assert least["path"] < 1e-12 < 1e-3 < least["hybrid"] < 0.1 * least["final"]
