"""Fully connected networks, in standard or NTK parameterization."""

import itertools
import math
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from clients.config import Count, ModelOptions


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


OutputActivation = Literal["linear", "sigmoid", "tanh", "softmax", "relu"]


def output_layer(name: OutputActivation) -> list[nn.Module]:
    """The non-linearity after the last layer, if any."""
    if name == "linear":
        return []
    return [nn.Softmax(dim=-1) if name == "softmax" else ACTIVATIONS[name]()]


class MLPOptions(ModelOptions):
    """A fully connected network on flattened images."""

    depth: Annotated[int, Field(ge=0, le=1000)] = Field(2, description="hidden layers")
    width: Count = Field(512, description="units of a hidden layer")
    bias: bool = True
    bottleneck: Count | None = Field(None, description="units of the middle hidden layer; default as the others")
    activation: Literal["relu", "tanh", "sigmoid", "softplus", "gelu", "softmax", "maxout"] = "relu"
    output_activation: OutputActivation = "linear"
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of a hidden layer's units that training sets to zero, drawn for every image and step"
    )
    parameterization: Literal["standard", "ntk"] = Field(
        "standard", description="ntk: weights of variance 1, divided by √fan_in, as the infinite-width limit needs"
    )

    def build(self, shape: tuple[int, int, int], outputs: int) -> nn.Sequential:
        linear = NTKLinear if self.parameterization == "ntk" else nn.Linear
        sizes = [math.prod(shape), *[self.width] * self.depth, outputs]
        if self.bottleneck is not None and self.depth:
            sizes[1 + self.depth // 2] = self.bottleneck
        pieces = 2 if self.activation == "maxout" else 1
        layers: list[nn.Module] = [nn.Flatten()]
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            if i > 0:
                layers.append(ACTIVATIONS[self.activation]())
                layers += [nn.Dropout(self.dropout)] if self.dropout else []
            last = i == self.depth
            layers.append(linear(fan_in, fan_out if last else pieces * fan_out, bias=self.bias))
        return nn.Sequential(*layers, *output_layer(self.output_activation))
