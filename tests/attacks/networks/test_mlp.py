"""Plain MLPs are recognized, everything else is not, and the closed form of their gradients is autograd's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.networks.mlp import find_dense_network

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


@pytest.mark.parametrize(
    ("activation", "name"),
    [(nn.ReLU, "relu"), (nn.Tanh, "tanh"), (nn.Sigmoid, "sigmoid"), (nn.Softplus, "softplus")],
)
def test_sequential_is_recognized(activation, name):
    network = find_dense_network(linear_stack(activation), SHAPE)
    assert network.weights == ("1.weight", "3.weight", "5.weight")
    assert network.biases == ("1.bias", "3.bias", "5.bias")
    assert network.activation == name


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


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        Residual(),
        DataDependent(),
        Functional(F.gelu),
        Functional(torch.relu, lambda x: x.view(x.size(0), -1) * 2),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 2), nn.Sigmoid()),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Softplus(beta=3), nn.Linear(7, 2)),
    ],
    ids=["conv", "residual", "branch", "gelu", "scaled", "two_activations", "no_activation", "batchnorm",
         "output_activation", "softplus_3"],
)  # fmt: skip
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
