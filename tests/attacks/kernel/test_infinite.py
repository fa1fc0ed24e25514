import itertools
import math

import pytest
import torch
from torch import nn

from attacks import InputError
from attacks.kernel.empirical import empirical_ntk, kernel_distance
from attacks.kernel.infinite import ArcCosine, InfiniteNTK


def images(count, *shape, seed=0):
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_arc_cosine_at_angles_with_known_values():
    cosine = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)  # θ = 0, π/3, π/2, π
    value, slope = ArcCosine.apply(cosine)
    assert slope.tolist() == pytest.approx([1, 2 / 3, 1 / 2, 0])
    assert value.tolist() == pytest.approx([1, (math.sqrt(3) / 2 + math.pi / 3) / math.pi, 1 / math.pi, 0])


def test_arc_cosine_is_the_expectation_under_correlated_gaussians():
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn((2, 400_000), generator=generator, dtype=torch.float64)
    for correlation in (-0.6, 0.3, 0.9):
        w = correlation * u + math.sqrt(1 - correlation**2) * v
        value, slope = ArcCosine.apply(torch.tensor([correlation], dtype=torch.float64))
        assert 2 * (u.relu() * w.relu()).mean() == pytest.approx(value.item(), abs=0.01)
        assert 2 * ((u > 0) & (w > 0)).double().mean() == pytest.approx(slope.item(), abs=0.01)


def test_one_hidden_layer_on_orthogonal_images_by_hand():
    x = 2 * torch.eye(2, dtype=torch.float64)  # n₀ = 2, ‖x‖² = 4: variance 2 before the first ReLU
    # ntk, no biases. Off the diagonal: κ̇ = 1/4 times ⟨x, x'⟩ = 0, and κ = 2 · 1/(2π). On it: κ = 1, κ̇ Θ₁ = ½ · 2.
    kernel = InfiniteNTK(depth=1, bias=False, parameterization="ntk")(x)
    assert torch.allclose(kernel, torch.tensor([[2, 1 / math.pi], [1 / math.pi, 2]], dtype=torch.float64))
    # standard at width 10, with biases: 10 κ + 1 + κ̇ (⟨x, x'⟩ + 1)
    kernel = InfiniteNTK(depth=1, width=10)(x)
    assert torch.allclose(InfiniteNTK(depth=1)(x), torch.tensor([[1, 1 / math.pi], [1 / math.pi, 1]]).double())
    expected = [[10 + 1 + 0.5 * 5, 10 / math.pi + 1 + 0.25], [10 / math.pi + 1 + 0.25, 13.5]]
    assert torch.allclose(kernel, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_the_mean_empirical_kernel_of_wide_networks(depth, bias):
    """Units included: the recursion stands for the kernel of a network of that width, averaged over its weights."""
    torch.manual_seed(0)
    width, x = 512, images(5, 1, 4, 4)
    sizes = [16, *[width] * depth, 1]
    total = torch.zeros((5, 5), dtype=torch.float64)
    for _ in range(20):
        layers = [nn.Flatten()]
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, bias=bias).double(), nn.ReLU()]
            nn.init.normal_(layers[-2].weight, std=1 / math.sqrt(fan_in))
            if bias:
                nn.init.zeros_(layers[-2].bias)
        model = nn.Sequential(*layers[:-1])
        total += empirical_ntk(model, model.state_dict(), x) / 20
    kernel = InfiniteNTK(depth=depth, width=width, bias=bias)(x)
    assert torch.allclose(total, kernel, rtol=0.06, atol=0.03 * kernel.max().item())
    assert kernel_distance(total, kernel) < 1e-3


def test_gradient_is_right_and_finite_on_the_diagonal_and_for_a_zero_image():
    kernel = InfiniteNTK(width=7)
    x, y = images(3, 4).requires_grad_(), images(2, 4, seed=1)
    assert torch.autograd.gradcheck(lambda a: kernel(a, y), (x,))
    assert torch.autograd.gradcheck(lambda a: kernel(a), (x,))
    zero = torch.zeros((1, 4), dtype=torch.float64, requires_grad=True)
    kernel(zero, y).sum().backward()
    assert torch.isfinite(zero.grad).all()


def test_without_a_width_it_is_the_limit_of_the_kernel_over_the_width():
    x = images(4, 1, 3, 3)
    assert torch.allclose(InfiniteNTK(width=10**10)(x) / 10**10, InfiniteNTK()(x), rtol=1e-8)


def test_cross_kernel_agrees_with_the_kernel():
    kernel, x = InfiniteNTK(depth=3, parameterization="ntk", weight_std=1.4), images(4, 1, 3, 3)
    assert torch.allclose(kernel(x[:1], x[1:]), kernel(x)[:1, 1:], rtol=1e-12)


def test_bad_options():
    with pytest.raises(InputError, match="depth is 0"):
        InfiniteNTK(depth=0)
    with pytest.raises(InputError, match="choose standard or ntk"):
        InfiniteNTK(parameterization="mup")


INPUTS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.4, -1.2]], dtype=torch.float64)
# stax.serial(*[Dense(1, W_std=1.4), Relu()] * depth, Dense(1, W_std=1.4)) of neural-tangents 0.6 in float64, by depth
FIGURES = {
    1: [6.7227999999999986, 0.02945226704469972, 0.02945226704469972, 2.1641013333333325],
    2: [9.882515999999995, 0.7634414660797348, 0.7634414660797348, 3.181228959999998],
    3: [12.913154239999994, 1.4687131483984666, 1.4687131483984666, 4.156805841066664],
}


@pytest.mark.parametrize("depth", FIGURES)
def test_it_is_the_kernel_of_neural_tangents(depth):
    kernel = InfiniteNTK(depth, bias=False, weight_std=1.4, parameterization="ntk")(INPUTS)
    assert kernel.flatten().tolist() == pytest.approx(FIGURES[depth], rel=1e-12)
