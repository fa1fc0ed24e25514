"""Plain MLPs are recognized, everything else is not, and the closed form of their gradients is autograd's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.networks.front_layers import find_dense_network, read_front_layers
from attacks.networks.mlp import ACTIVATIONS

SHAPE = (1, 3, 4)


def linear_stack(activation: type[nn.Module], bias: bool = True, outputs: int = 2) -> nn.Sequential:
    layers = nn.Linear(12, 7, bias), activation(), nn.Linear(7, 5, bias), activation(), nn.Linear(5, outputs, bias)
    return nn.Sequential(nn.Flatten(), *layers)


class Functional(nn.Module):
    def __init__(self, activation, flatten=lambda x: torch.flatten(x, 1)):
        super().__init__()
        self.activation, self.flatten = activation, flatten
        self.hidden, self.head = nn.Linear(12, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.hidden(self.flatten(x))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.first, self.second, self.head = nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(self.flat(x)))
        return self.head(h + torch.relu(self.second(h)))


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) if x.sum() > 0 else self.head(-x.flatten(1))


class Scaled(nn.Module):
    """A frozen factor, 1 here and something else in a checkpoint."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(12, 7), nn.Linear(7, 2)
        self.factor = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.factor * torch.relu(self.hidden(x.flatten(1))))


def tied() -> nn.Sequential:
    """Two layers of the same weights."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 7))
    model[5].weight = model[3].weight
    return model.append(nn.ReLU()).append(nn.Linear(7, 2))


@pytest.mark.parametrize(
    ("activation", "name"),
    [(nn.ReLU, "relu"), (nn.Tanh, "tanh"), (nn.Sigmoid, "sigmoid"), (nn.Softplus, "softplus")],
)
def test_sequential_is_recognized(activation, name):
    network = find_dense_network(linear_stack(activation), SHAPE)
    assert network.weights == ("1.weight", "3.weight", "5.weight")
    assert network.biases == ("1.bias", "3.bias", "5.bias")
    assert network.activation == name


@pytest.mark.parametrize(
    ("layer", "function", "name", "parameter"),
    [
        (nn.LeakyReLU(0.2), lambda z: F.leaky_relu(z, 0.2), "leaky_relu", 0.2),
        (nn.LeakyReLU(), F.leaky_relu, "leaky_relu", 0.01),
        (nn.ELU(0.7), lambda z: F.elu(z, alpha=0.7), "elu", 0.7),
        (nn.SiLU(), F.silu, "silu", None),
        (nn.GELU(), F.gelu, "gelu", None),
        (nn.GELU("tanh"), lambda z: F.gelu(z, approximate="tanh"), "gelu_tanh", None),
    ],
)
def test_activations_are_read_with_their_parameter_and_are_torchs(layer, function, name, parameter):
    models = linear_stack(lambda: layer), Functional(function)
    found = [read_front_layers(model, SHAPE) for model in models]
    assert [one.activation for one in found] == [name] * 2
    assert all(one.parameter == (parameter and pytest.approx(parameter, rel=1e-9)) for one in found)
    z = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)  # without 0, where ReLUs have a kink
    z = z[z.abs() > 1e-9]
    expected = layer(z)
    (slope,) = torch.autograd.grad(expected.sum(), z)
    value, own = found[0].activate(z.detach(), None)
    assert (value - expected).abs().max() < 1e-14 and (own - slope).abs().max() < 1e-12
    assert all(find_dense_network(model, SHAPE) is None for model in models)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_those_of_the_values(name):
    z = torch.tensor([-3.0, -1.1, -0.2, 0.3, 0.9, 2.5], dtype=torch.float64, requires_grad=True)
    value, slope = ACTIVATIONS[name](z, None)
    (expected,) = torch.autograd.grad(value.sum(), z)
    assert (slope - expected).abs().max() < 1e-12


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_batchnorm_in_evaluation_mode_scales_and_shifts(affine, bias):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(7, eps=1e-3, affine=affine)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7, bias), norm, nn.ReLU(), nn.Linear(7, 2)).double()
    for _ in range(3):
        model(torch.randn(9, *SHAPE, dtype=torch.float64))
    if affine:
        nn.init.uniform_(norm.weight, -2, 2)
        nn.init.uniform_(norm.bias)
    network = read_front_layers(model, SHAPE)
    scale, shift = network.norms[0].scale_and_shift(model.state_dict())
    z = torch.randn(5, 7, dtype=torch.float64)
    assert (scale * z + shift - norm.eval()(z)).abs().max() < 1e-12
    assert network.norms[1] is None and find_dense_network(model, SHAPE) is None


def test_dropout_is_passed_over():
    layers = nn.Linear(12, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 2)
    network = find_dense_network(nn.Sequential(nn.Flatten(), *layers), SHAPE)
    assert network is not None and network.weights == ("1.weight", "4.weight")


def test_layers_without_bias_are_recognized():
    assert find_dense_network(linear_stack(nn.ReLU, bias=False), SHAPE).biases == (None, None, None)


@pytest.mark.parametrize("activation", [torch.relu, F.relu, torch.tanh, torch.sigmoid, lambda x: x.relu()])
@pytest.mark.parametrize("flatten", [lambda x: x.view(x.size(0), -1), lambda x: x.reshape(-1, 12)])
def test_functional_modules_are_recognized(activation, flatten):
    assert find_dense_network(Functional(activation, flatten), SHAPE).weights == ("hidden.weight", "head.weight")


def test_a_single_layer_is_recognized():
    assert find_dense_network(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), SHAPE).weights == ("1.weight",)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.head = nn.Linear(12, 7), nn.Linear(7, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.again(torch.relu(self.first(x.flatten(1)))))
        return self.head(torch.relu(self.again(h)))


def between(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), *layers, nn.Linear(7, 2))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(12, 2)),
        Residual(),
        DataDependent(),
        Scaled(),
        tied(),
        Functional(torch.relu, lambda x: x.view(x.size(0), -1) * 2),
        between(nn.ReLU(), nn.Linear(7, 7), nn.Tanh()),
        between(nn.LeakyReLU(0.1), nn.Linear(7, 7), nn.LeakyReLU(0.2)),
        between(),
        between(nn.ReLU(), nn.Tanh()),
        nn.Sequential(between(nn.ReLU()), nn.Sigmoid()),
        nn.Sequential(between(nn.ReLU()), nn.LogSoftmax(1)),
        between(nn.Softplus(beta=3)),
        between(nn.PReLU()),
        between(nn.LayerNorm(7), nn.ReLU()),
        between(nn.ReLU(), nn.BatchNorm1d(7)),
        between(nn.BatchNorm1d(7, track_running_stats=False)),
        Twice(),
        nn.Flatten(),
    ],
)
def test_other_models_are_not_recognized(model):
    assert find_dense_network(model, SHAPE) is None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus])
@pytest.mark.parametrize("bias", [True, False])
def test_factors_give_the_sum_of_per_sample_gradients(activation, bias):
    torch.manual_seed(0)
    model = linear_stack(activation, bias).double()
    images, duals = torch.randn(6, *SHAPE, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    expected = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for image, dual in zip(images, duals, strict=True):
        for k in range(2):
            grads = torch.autograd.grad(model(image[None])[0, k], list(model.parameters()))
            for name, grad in zip(expected, grads, strict=True):
                expected[name] += dual[k] * grad
    network = find_dense_network(model, SHAPE)
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    passed = network.run(network.layers(state), images, duals, None)
    layers = zip(network.weights, network.biases, passed.signals, passed.inputs, strict=True)
    for weight, name, d, a in layers:
        assert (d.T @ a - expected[weight]).abs().max() < 1e-12
        assert name is None or (d.sum(0) - expected[name]).abs().max() < 1e-12


def test_softplus_stands_for_relu_where_beta_is_given():
    model = linear_stack(nn.ReLU).double()
    images = torch.randn(3, *SHAPE, dtype=torch.float64)
    smooth = nn.Sequential(*(nn.Softplus(20.0) if isinstance(m, nn.ReLU) else m for m in model))
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = find_dense_network(model, SHAPE).forward(state, images, beta=20.0)
    assert (found - smooth(images)).abs().max() < 1e-12
