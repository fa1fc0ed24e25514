"""Subclasses of layers whose weights learn what they were fed, and others."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.networks.own_forward import layer_of_other_products


def of_class(base, forward):
    return type("Own", (base,), {"forward": forward})


def normalized(weight):
    return (weight - weight.mean(1, keepdim=True)) / weight.std(1, keepdim=True)


OTHERS = {
    "inputs normalized": lambda own, x: F.linear(F.layer_norm(x, x.shape[1:]), own.weight, own.bias),
    "inputs of a batch": lambda own, x: F.linear(x - x.mean(0), own.weight, own.bias),
    "inputs clamped": lambda own, x: F.linear(x.clamp(0, 0.5), own.weight, own.bias),
    "inputs scaled": lambda own, x: F.linear(0.5 * x, own.weight, own.bias),
    "inputs dropped in training": lambda own, x: F.linear(F.dropout(x, 0.3, own.training), own.weight, own.bias),
    "weight scaled": lambda own, x: F.linear(x, 0.1 * own.weight, own.bias),
    "weight standardized": lambda own, x: F.linear(x, normalized(own.weight), own.bias),
    "weight dropped in training": lambda own, x: F.linear(x, F.dropout(own.weight, 0.3, own.training), own.bias),
    "bias scaled": lambda own, x: F.linear(x, own.weight, 0.1 * own.bias),
}
KEPT = {
    "plain": lambda own, x: F.linear(x, own.weight, own.bias),
    "outputs scaled": lambda own, x: 0.3 * F.linear(x, own.weight, own.bias),
    "outputs dropped": lambda own, x: F.dropout(F.linear(x, own.weight, own.bias), 0.3, own.training),
    "rounded": lambda own, x: F.linear(x, own.weight + (own.weight.round(decimals=1) - own.weight).detach(), own.bias),
}


CONVOLUTIONS = {
    "plain": lambda own, x: own._conv_forward(x, own.weight, own.bias),
    "outputs scaled": lambda own, x: 0.3 * own._conv_forward(x, own.weight, own.bias),
    "inputs normalized": lambda own, x: own._conv_forward(F.layer_norm(x, x.shape[1:]), own.weight, own.bias),
    "weight standardized": lambda own, x: own._conv_forward(
        x, normalized(own.weight.flatten(1)).view_as(own.weight), own.bias
    ),
    "padded by itself": lambda own, x: F.conv2d(F.pad(x, (1,) * 4, mode="reflect"), own.weight, own.bias),
}


@pytest.mark.parametrize("name", [*OTHERS, *KEPT])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_a_class_of_their_own(name, bias):
    torch.manual_seed(0)
    last = of_class(nn.Linear, (OTHERS | KEPT)[name])(32, 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), last)
    if not bias:
        if name == "bias scaled":
            return
        last.register_parameter("bias", None)
    unseen = not bias and name in ("inputs scaled", "weight scaled")  # the signals then tell no size
    found = layer_of_other_products(model, (1, 8, 8), {"1.weight", "3.weight"})
    assert found == ("3" if name in OTHERS and not unseen else None)
    assert layer_of_other_products(model, (1, 8, 8), {"1.weight"}) is None  # frozen, it is a part of the body


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_a_class_of_their_own(name):
    torch.manual_seed(0)
    model = nn.Sequential(of_class(nn.Conv2d, CONVOLUTIONS[name])(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 10))
    found = layer_of_other_products(model, (1, 8, 8), {"0.weight", "2.weight"})
    assert found == (None if name in ("plain", "outputs scaled") else "0")
