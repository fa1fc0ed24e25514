"""Fully connected networks, in standard or NTK parameterization."""

import itertools
import math

import torch.nn.functional as F
from torch import Tensor, nn

from clients.config import ModelConfig


class LayerSoftmax(nn.Module):
    """n·softmax(z) over the n units of a layer: their mean is 1 at any width, where a plain softmax would vanish."""

    def forward(self, input: Tensor) -> Tensor:
        return input.shape[-1] * input.softmax(-1)


class Maxout(nn.Module):
    """The larger one of two neighbouring units: (…, 2n) -> (…, n) (Goodfellow et al. 2013)."""

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(-1, (-1, 2)).amax(-1)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "softmax": LayerSoftmax,
    "maxout": Maxout,
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
    """`config.depth` hidden layers of `config.width` units on flattened (C, H, W) images; the middle one has
    `config.bottleneck` units where that is given."""
    linear = NTKLinear if config.parameterization == "ntk" else nn.Linear
    sizes = [math.prod(shape), *[config.width] * config.depth, outputs]
    if config.bottleneck is not None and config.depth:
        sizes[1 + config.depth // 2] = config.bottleneck
    pieces = 2 if config.activation == "maxout" else 1
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        if i > 0:
            layers.append(ACTIVATIONS[config.activation]())
        last = i == config.depth
        layers.append(linear(fan_in, fan_out if last else pieces * fan_out, bias=config.bias))
    return nn.Sequential(*layers, *output_layer(config.output_activation))
