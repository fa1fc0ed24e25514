"""LeNet-5 with a width multiplier, as in Loo et al. 2024, appendix J.1."""

import torch
from torch import nn

from attacks.interface.errors import InputError
from clients.config import ModelConfig
from clients.models.mlp import ACTIVATIONS, output_layer


def lenet5(config: ModelConfig, shape: tuple[int, int, int], outputs: int) -> nn.Sequential:
    """Two 5x5 convolutions with average pooling, then fully connected layers of 120m and 84m units."""
    m, activation = config.multiplier, ACTIVATIONS[config.activation]
    if min(shape[1:]) < 12:
        raise InputError(
            f"model 'lenet5' needs images of at least 12x12 pixels, these have {shape[1]}x{shape[2]}: use mlp"
        )
    if config.activation in ("softmax", "maxout"):
        raise InputError(f"model.activation {config.activation!r} is one of fully connected layers: use mlp")
    features = nn.Sequential(
        nn.Conv2d(shape[0], 6 * m, 5, padding=2, bias=config.bias),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(6 * m, 16 * m, 5, bias=config.bias),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    )
    with torch.no_grad():
        flat = features(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(
        *features,
        nn.Linear(flat, 120 * m, bias=config.bias),
        activation(),
        nn.Linear(120 * m, 84 * m, bias=config.bias),
        activation(),
        nn.Linear(84 * m, outputs, bias=config.bias),
        *output_layer(config.output_activation),
    )
