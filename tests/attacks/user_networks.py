"""Networks as people write them: with `view`, in channels-last memory, with operations in place, with outputs that are
no tensor. Those of PyTorch's and Flower's examples, and small ones built as torchvision, timm and others build them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Quickstart(nn.Module):
    """That of Flower's template and PyTorch's CIFAR-10 tutorial, for images 3 × 32 × 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Perceptron(nn.Module):
    """For images 1 × 8 × 8, with the log-softmax of PyTorch's MNIST example where `log`."""

    def __init__(self, log: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.log = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10), log

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.view(-1, 64))))))
        return F.log_softmax(x, dim=1) if self.log else x


class ChannelsLast(nn.Module):
    """For images 1 × 8 × 8; its `view` needs what it converted them to."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.fc1, self.fc2 = nn.Linear(64, 16), nn.Linear(16, 10)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x.to(memory_format=torch.channels_last)))
        x = F.relu(self.conv2(x)).permute(0, 2, 3, 1).view(-1, 64)
        return self.fc2(F.relu(self.fc1(x)))


class Residual(nn.Module):
    """For images 1 × 8 × 8: changes the images, the maps and the sums in place, or computes the same without."""

    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.bn, self.act, self.in_place = nn.BatchNorm2d(4), nn.ReLU(inplace=in_place), in_place
        self.fc1, self.fc2 = nn.Linear(256, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_place:
            x = self.act(self.conv1((x - 0.13) / 0.31))
            x = torch.relu(self.bn(self.conv2(x)) + x).flatten(1)
            return self.fc2(torch.relu(self.fc1(x)))
        x -= 0.13
        x /= 0.31
        x = self.act(self.conv1(x))
        y = self.bn(self.conv2(x))
        y += x
        x = self.fc1(y.relu_().view(-1, 256))
        x.relu_()
        return self.fc2(x)


class BatchNormalized(nn.Module):
    """For images 1 × 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn, self.conv2 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)
        self.fc1, self.fc2 = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv1(x)), inplace=True)
        x = F.relu(self.conv2(x), inplace=True).view(-1, 64)
        return self.fc2(F.relu(self.fc1(x)))


class MnistExample(nn.Module):
    """That of PyTorch's MNIST example, for images 1 × 8 × 8: dropout, and log-softmax at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout1(F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def normalized(
    into: int, out: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True, dropout: float = 0.0
) -> nn.Sequential:
    """A convolution without a bias, BatchNorm, and the ReLU6 of mobile networks where `act`."""
    convolution = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    after = [nn.ReLU6(inplace=True)] if act else []
    return nn.Sequential(convolution, nn.BatchNorm2d(out), *after, *([nn.Dropout(dropout)] if dropout else []))


class BasicBlock(nn.Module):
    """As torchvision's, with the stride in the first convolution and in the shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu, self.downsample = nn.ReLU(inplace=True), normalized(into, out, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """As torchvision's, for images 3 × 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.avgpool, self.fc = BasicBlock(4, 8, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class InvertedResidual(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 2 * into
        self.conv = nn.Sequential(
            normalized(into, wide, 1), normalized(wide, wide, 3, stride, wide), normalized(wide, out, 1, act=False)
        )
        self.skips = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.skips else self.conv(x)


class MobileNetV2(nn.Module):
    """As torchvision's, for images 3 × 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        blocks = InvertedResidual(4, 4, 1), InvertedResidual(4, 8, 2)
        self.features = nn.Sequential(normalized(3, 4, 3, 2), *blocks, normalized(8, 16, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1))


class Attention(nn.Module):
    """timm's: one layer for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.proj(x.transpose(1, 2).reshape(count, tokens, dim))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim, 2), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimmViT(nn.Module):
    """For images 1 × 8 × 8: patches by a convolution, a class token, a position for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.cls_token = nn.Conv2d(1, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, 8))
        self.blocks, self.norm, self.head = nn.Sequential(Block(8)), nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@dataclass
class ImageClassifierOutput:
    """As Hugging Face's."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class HuggingFaceViT(nn.Module):
    """For images 1 × 8 × 8: returns an object with `logits`, or a dictionary."""

    def __init__(self, as_dict: bool = False) -> None:
        super().__init__()
        self.vit, self.classifier, self.as_dict = TimmViT(), nn.Linear(10, 10), as_dict

    def forward(self, pixel_values: Tensor | None = None, labels: Tensor | None = None) -> object:
        logits = self.classifier(self.vit(pixel_values))
        return {"logits": logits} if self.as_dict else ImageClassifierOutput(logits=logits)


class Heads(nn.Module):
    """For images 1 × 8 × 8: a dictionary of heads, of which one is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Linear(64, 24), "second": nn.Linear(24, 24)})
        self.heads = nn.ModuleDict({"digit": nn.Linear(24, 10), "unused": nn.Linear(24, 3)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.body["first"](x.view(x.size(0), -1)).relu_()
        return self.heads["digit"](self.body["second"](x).relu_())


def fastai() -> nn.Sequential:
    """A body and a head as fastai cuts and joins them, for images 3 × 8 × 8: Sequential in Sequential, BatchNorm1d and
    dropout before every linear layer."""
    body = nn.Sequential(normalized(3, 4, 3), nn.Sequential(normalized(4, 8, 3, 2), BasicBlock(8, 8, 1)))
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(32), nn.Dropout(0.25), nn.Linear(32, 16, bias=False),
        nn.ReLU(inplace=True), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10, bias=False),
    )  # fmt: skip
    return nn.Sequential(body, head)


def dropped() -> nn.Sequential:
    """For images 1 × 8 × 8: dropout on the pixels, BatchNorm after the activation and before the output."""
    return nn.Sequential(
        nn.Dropout2d(0.1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 24), nn.ReLU(), nn.BatchNorm1d(24),
        nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10),
    )  # fmt: skip
