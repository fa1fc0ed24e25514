"""Fully connected networks, in standard or NTK parameterization."""

import itertools
import math

import torch.nn.functional as F
from torch import Tensor, nn

from clients.config import ModelConfig

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
}


class NTKLinear(nn.Linear):
    """z = W x / √fan_in + b with W ~ N(0, 1): the parameterization in which the kernel has an infinite-width limit."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / math.sqrt(self.in_features), self.bias)


def output_layer(name: str) -> list[nn.Module]:
    """The non-linearity after the last layer, if any."""
    known: dict[str, list[nn.Module]] = {
        "linear": [],
        "sigmoid": [nn.Sigmoid()],
        "tanh": [nn.Tanh()],
        "softmax": [nn.Softmax(dim=-1)],
    }
    return known[name]


def mlp(config: ModelConfig, shape: tuple[int, int, int], outputs: int) -> nn.Sequential:
    """`config.depth` hidden layers of `config.width` units on flattened (C, H, W) images."""
    linear = NTKLinear if config.parameterization == "ntk" else nn.Linear
    sizes = [math.prod(shape), *[config.width] * config.depth, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        if i > 0:
            layers.append(ACTIVATIONS[config.activation]())
        layers.append(linear(fan_in, fan_out, bias=config.bias))
    return nn.Sequential(*layers, *output_layer(config.output_activation))
