"""The first two linear layers are read off what modules are given, whatever lies behind them."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.networks.front_layers import read_front_layers
from tests.attacks.networks.test_mlp import SHAPE, Functional, Twice, between, linear_stack

NAMES = ("1.weight", "3.weight", "5.weight")


@pytest.mark.parametrize(
    ("layer", "name", "parameter"),
    [
        (nn.ReLU(), "relu", None),
        (nn.Tanh(), "tanh", None),
        (nn.Sigmoid(), "sigmoid", None),
        (nn.Softplus(), "softplus", None),
        (nn.LeakyReLU(0.2), "leaky_relu", 0.2),
        (nn.LeakyReLU(), "leaky_relu", 0.01),
        (nn.ELU(0.7), "elu", 0.7),
        (nn.SiLU(), "silu", None),
        (nn.GELU(), "gelu", None),
        (nn.GELU("tanh"), "gelu_tanh", None),
    ],
)
def test_the_activation_is_told_by_its_values(layer, name, parameter):
    for inplace in (False, True) if hasattr(layer, "inplace") else (False,):
        layer.inplace = inplace
        found = read_front_layers(linear_stack(lambda: layer), SHAPE)
        assert (found.weights, found.activation) == (NAMES, name)
        assert found.parameter == (None if parameter is None else pytest.approx(parameter, rel=1e-9))


class Behind(nn.Module):
    """Two layers with a ReLU between, and what a function makes of the second one's outputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.second, self.head = nn.Linear(12, 7), nn.Linear(7, 7), nn.Linear(7, 2)

    def forward(self, x):
        if x.dim() == 4:  # which no tracer follows
            x = x.view(x.size(0), -1)
        h = F.relu(self.first(x))
        return self.function(self, h, self.second(h))


BEHIND = {
    "log_softmax": lambda own, h, z: F.log_softmax(own.head(torch.relu(z)), 1),
    "another activation": lambda own, h, z: own.head(torch.tanh(z)),
    "a residual connection": lambda own, h, z: own.head(h + torch.relu(z)),
    "a single number": lambda own, h, z: torch.sigmoid(own.head(torch.relu(z))[:, 0]),
    "two outputs": lambda own, h, z: (own.head(torch.relu(z)), h),
    "a dictionary": lambda own, h, z: {"logits": own.head(torch.relu(z))},
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_lies_behind_the_second_layer_does_not_matter(name):
    found = read_front_layers(Behind(BEHIND[name]), SHAPE)
    assert (found.weights, found.activation) == (("first.weight", "second.weight", "head.weight"), "relu")


def test_the_second_layer_may_be_used_again():
    assert read_front_layers(Twice(), SHAPE).weights == ("first.weight", "again.weight", "again.weight", "head.weight")


def test_batchnorm_is_found_behind_either_layer():
    torch.manual_seed(0)
    body = [nn.Linear(12, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5), nn.BatchNorm1d(5), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *body, nn.Linear(5, 3), nn.Softmax(1))
    model(torch.randn(9, *SHAPE))
    found = read_front_layers(model, SHAPE)
    assert [norm and norm.name for norm in found.norms] == ["2", "5", None]
    assert (found.activation, found.biases) == ("tanh", (None, "4.bias", "7.bias"))


def test_one_hidden_layer_and_none():
    assert read_front_layers(nn.Sequential(between(nn.ReLU()), nn.LogSoftmax(1)), SHAPE).weights == (
        "0.1.weight",
        "0.3.weight",
    )
    assert read_front_layers(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), SHAPE).weights == ("1.weight",)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(12, 2)), "Conv2d '0' ahead of its first linear"),
        (Functional(torch.relu, lambda x: x.flatten(1) * 2), "other than its pixels at linear layer 'hidden'"),
        (between(), "no activation that is known ahead of its linear layer '2'"),
        (between(nn.ReLU(), nn.Tanh()), "no activation that is known ahead of its linear layer '4'"),
        (between(nn.ReLU6()), "no activation that is known ahead of its linear layer '3'"),
        (between(nn.Softplus(beta=3)), "no activation that is known ahead of its linear layer '3'"),
        (between(nn.PReLU()), "PReLU '2' between its first two linear layers"),
        (between(nn.LayerNorm(7), nn.ReLU()), "LayerNorm '2' between its first two linear layers"),
        (between(nn.ReLU(), nn.BatchNorm1d(7)), "BatchNorm1d '3' between its first two linear layers"),
        (between(nn.BatchNorm1d(7, track_running_stats=False)), "a BatchNorm without running statistics, '2'"),
        (nn.Sequential(nn.Flatten(), square := nn.Linear(12, 12), nn.ReLU(), square), "weight is used twice, '1'"),
        (nn.Flatten(), "layers without a linear one"),
        (Functional(torch.relu, lambda x: x.view(1, 12)), "a forward pass that fails on a batch of 4"),
    ],
)
def test_other_networks_are_not_read_and_it_is_said_what_they_have(model, words):
    assert re.search(words, read_front_layers(model, SHAPE))
