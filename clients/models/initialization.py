"""Initial weights, drawn from an explicit generator."""

import math

import torch
from torch import nn

from clients.models.mlp import NTKLinear

# standard deviation of a normal distribution truncated at ±2σ, by which Flax corrects its initializers
TRUNCATED_STD = 0.87962566103423978


def initialize(model: nn.Module, scheme: str, generator: torch.Generator) -> None:
    """LeCun-normal weights (variance 1/fan_in), truncated at two standard deviations or not, and zero biases.

    Layers in NTK parameterization get N(0, 1) weights instead. Other modules keep what their constructor gave them.
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        std = 1.0 if isinstance(layer, NTKLinear) else 1 / math.sqrt(layer.weight[0].numel())
        if scheme == "lecun_truncated" and not isinstance(layer, NTKLinear):
            std /= TRUNCATED_STD
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        else:
            nn.init.normal_(layer.weight, std=std, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
