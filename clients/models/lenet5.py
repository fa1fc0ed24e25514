"""LeNet-5 with a width multiplier, as in Loo et al. 2024, appendix J.1, or with max pooling as in most tutorials."""

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from attacks.interface.errors import InputError
from clients.config import Count, ModelOptions
from clients.models.mlp import ACTIVATIONS, OutputActivation, output_layer


class LeNet5Options(ModelOptions):
    """Two 5x5 convolutions with pooling, then fully connected layers of 120m and 84m units."""

    multiplier: Count = Field(1, description="width multiplier m; the convolutions have 6m and 16m channels")
    bias: bool = True
    pooling: Literal["average", "max"] = Field(
        "average", description="max: the network of Flower's quickstart, up to the padding of its first convolution"
    )
    activation: Literal["relu", "tanh", "sigmoid", "softplus", "gelu"] = "relu"
    output_activation: OutputActivation = "linear"

    def build(self, shape: tuple[int, int, int], outputs: int) -> nn.Sequential:
        m, activation = self.multiplier, ACTIVATIONS[self.activation]
        pool = nn.MaxPool2d if self.pooling == "max" else nn.AvgPool2d
        if min(shape[1:]) < 12:
            raise InputError(
                f"model 'lenet5' needs images of at least 12x12 pixels, these have {shape[1]}x{shape[2]}: use mlp"
            )
        features = nn.Sequential(
            nn.Conv2d(shape[0], 6 * m, 5, padding=2, bias=self.bias),
            activation(),
            pool(2),
            nn.Conv2d(6 * m, 16 * m, 5, bias=self.bias),
            activation(),
            pool(2),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat = features(torch.zeros(1, *shape)).shape[1]
        return nn.Sequential(
            *features,
            nn.Linear(flat, 120 * m, bias=self.bias),
            activation(),
            nn.Linear(120 * m, 84 * m, bias=self.bias),
            activation(),
            nn.Linear(84 * m, outputs, bias=self.bias),
            *output_layer(self.output_activation),
        )
