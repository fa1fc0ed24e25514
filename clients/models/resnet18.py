"""ResNet-18 (He et al. 2016), its state dict keyed as torchvision's, so that published weights load."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from clients.config import Count, ModelOptions
from clients.models.input_scale import INPUT_SCALE, InputScale, InputScaleOption

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

    channels: of the first stage, doubled by each of the others. in_channels: of the images. head: units of
    hidden layers in `fc`, which is linear where there are none, as published. stem: `imagenet`, a 7x7 convolution and a
    pooling, each of stride 2, as published; `cifar`, for small images: one 3x3 convolution of stride 1, under the same
    key. input_scale: what the images are divided by, one number or one of each channel; no part of the state dict.
    """

    def __init__(
        self,
        in_channels: int,
        outputs: int,
        channels: int = 64,
        head: Sequence[int] = (),
        *,
        stem: Stem = "imagenet",
        input_scale: float | Sequence[float] = 1.0,
    ):
        super().__init__()
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.scale = InputScale(input_scale, in_channels)
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
        for units in head:
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
        return ResNet18(shape[0], outputs, self.channels, self.head, stem=self.stem, input_scale=self.input_scale)
