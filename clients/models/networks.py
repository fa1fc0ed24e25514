"""The built-in networks: MLP, LeNet-5 (Loo et al. 2024, appendix J.1), ResNet-18 (He et al. 2016) and a small vision
transformer (Dosovitskiy et al. 2021).

ResNet-18 has the keys of torchvision's, so that published weights load; the transformer's layers those of timm's, but
`tokens`. Attention is written out: torch's fused kernels have no second derivative, which attacks need. Every parameter
stands in a module without others inside, where opacus takes gradients of single images.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.errors import InputError
from clients.config import Count, ModelOptions, Positive

InputScaleOption = Positive | list[Positive]
INPUT_SCALE = Field(
    1.0,
    description="what images are divided by inside the network, one number or one for each channel: the pixels' "
    "deviation that a checkpoint was trained with; their mean is data.mean",
)


class InputScale(nn.Module):
    """x / scale, channel by channel, for weights of standardized pixels; the scale is no part of the state dict."""

    def __init__(self, scale: float | Sequence[float], channels: int):
        """scale: one number, or one for each of the channels; InputError where there are more or fewer."""
        super().__init__()
        scales = [scale] if isinstance(scale, int | float) else list(scale)
        if len(scales) not in (1, channels):
            raise InputError(f"model.input_scale has {len(scales)} numbers, the images have {channels} channels")
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(scales).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return images / self.scale.to(images.dtype)  # an attack may compute in another precision than the network has


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
    """Return the non-linearity after the last layer, if any."""
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


Stem = Literal["imagenet", "cifar"]
STAGES = 4
BLOCKS = 2  # per stage


class BasicBlock(nn.Module):
    """relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), both convolutions 3x3; the first one has the stride."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels_in, H, W) -> (N, channels_out, ⌈H / stride⌉, ⌈W / stride⌉)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(hidden)) + shortcut)


class ResNet18(nn.Module):
    """A stem, four stages of two blocks, the mean over positions, `fc`.

    The channels of the first stage are doubled by each of the others. `fc` is linear where `head` has no hidden layers.
    Either stem has the same key. The input scale is no part of the state dict.
    """

    def __init__(self, in_channels: int, outputs: int, options: "ResNet18Options"):
        """in_channels: of the images."""
        super().__init__()
        stem, channels = options.stem, options.channels
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.scale = InputScale(options.input_scale, in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
        width = channels
        for stage in range(1, STAGES + 1):
            wider = channels * 2 ** (stage - 1)
            first = BasicBlock(width, wider, stride=1 if stage == 1 else 2)
            self.add_module(
                f"layer{stage}", nn.Sequential(first, *(BasicBlock(wider, wider, 1) for _ in range(1, BLOCKS)))
            )
            width = wider
        hidden: list[nn.Module] = []
        for units in options.head:
            hidden += [nn.Linear(width, units), nn.ReLU()]
            width = units
        last = nn.Linear(width, outputs)
        self.fc = nn.Sequential(*hidden, last) if hidden else last

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, outputs)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(self.scale(images)))))
        for stage in range(1, STAGES + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(torch.mean(x, (2, 3)))


class ResNet18Options(ModelOptions):
    """ResNet-18 for images of any size and number of channels; BatchNorm starts as the identity up to its epsilon."""

    channels: Count = Field(64, description="channels of the first stage; 64 is the published network")
    head: list[Count] = Field([], description="units of hidden layers in its head; as published, none")
    stem: Stem = Field(
        "imagenet",
        description="imagenet: 7x7 convolution and pooling, each of stride 2, as published; cifar: one 3x3 convolution "
        "of stride 1, for images of some 32x32 pixels",
    )
    input_scale: InputScaleOption = INPUT_SCALE

    def build(self, shape: tuple[int, int, int], outputs: int) -> ResNet18:
        return ResNet18(shape[0], outputs, self)


EPSILON = 1e-6  # of LayerNorm, as timm has it
SPREAD = 0.02  # standard deviation of initial positions and of the class token
EXPANSION = 4  # hidden units of a block per unit of the embedding


class Attention(nn.Module):
    """Softmax attention of every token to all, in several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        queries, keys, values = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        scores = queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5
        return self.proj((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Linear(width, EXPANSION * width)
        self.fc2 = nn.Linear(EXPANSION * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        return self.fc2(F.gelu(self.fc1(tokens)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPSILON)
        self.mlp = MLP(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) -> (N, T, D)."""
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class PatchEmbedding(nn.Module):
    """Every patch of the image, linearly mapped to one token."""

    def __init__(self, in_channels: int, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, HW / patch², D)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class Tokens(nn.Module):
    """A class token before the patches, and a learned position for each of them."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.cls_token = nn.Parameter(SPREAD * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(SPREAD * torch.randn(1, patches + 1, width))

    def forward(self, patches: Tensor) -> Tensor:
        """(N, P, D) -> (N, P + 1, D)."""
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed


class ViTTiny(nn.Module):
    """Patches and a class token with learned positions, blocks, and a linear head on what the class token became."""

    def __init__(self, shape: tuple[int, int, int], outputs: int, options: "ViTTinyOptions"):
        """shape: (C, H, W) of an image, its sides multiples of the patch."""
        super().__init__()
        width, patch = options.width, options.patch
        self.scale = InputScale(options.input_scale, shape[0])
        self.patch_embed = PatchEmbedding(shape[0], width, patch)
        self.tokens = Tokens((shape[1] // patch) * (shape[2] // patch), width)
        self.blocks = nn.Sequential(*(Block(width, options.heads) for _ in range(options.depth)))
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, outputs)."""
        tokens = self.tokens(self.patch_embed(self.scale(images)))
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class ViTTinyOptions(ModelOptions):
    """A vision transformer of the dimensions of ViT-Tiny, for small images. Its LayerNorm needs no statistics."""

    patch: Literal[4, 8] = Field(4, description="pixels of a patch's side")
    width: Count = Field(192, description="entries of a token")
    depth: Annotated[int, Field(ge=1, le=1000)] = Field(12, description="blocks")
    heads: Count = Field(3, description="of attention; width is a multiple of it")
    input_scale: InputScaleOption = INPUT_SCALE

    def build(self, shape: tuple[int, int, int], outputs: int) -> ViTTiny:
        if shape[1] % self.patch or shape[2] % self.patch:
            raise InputError(
                f"model 'vit_tiny' cuts images into patches of {self.patch}x{self.patch} pixels, these have "
                f"{shape[1]}x{shape[2]}: choose model.patch 4 or 8, or another network"
            )
        if self.width % self.heads:
            raise InputError(f"model.width is {self.width}, it has to be a multiple of model.heads = {self.heads}")
        return ViTTiny(shape, outputs, self)
