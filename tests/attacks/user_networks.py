"""Networks as people write them: with `view`, in channels-last memory, with operations in place, several outputs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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


class Typed(Perceptron):
    """Takes images of the type of its training alone, as code does that makes tensors of its own."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return super().forward(x)


class Converting(Perceptron):
    """Converts what it is given, as code does that is fed bytes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Keeping(Perceptron):
    """Keeps what it gave last, graph and all, as code does that shows it."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        self.seen = {"first": [(self.last[:1],)]}
        return self.last


class Recurrent(nn.Module):
    """Reads the rows of an image one after the other."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM):
        super().__init__()
        self.rows, self.out = kind(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rows(x.flatten(1, 2))[0][:, -1])


class ByKeyword(nn.Module):
    """Passes its layers what they are fed by keyword."""

    def __init__(self):
        super().__init__()
        self.rows, self.attention = nn.Linear(8, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows(input=x.flatten(1, 2))
        return self.out(input=self.attention(query=rows, key=rows, value=rows)[0].mean(1))


def saved_on_cpu(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer that keeps what its gradients need off the GPU."""
    with torch.autograd.graph.save_on_cpu():
        return layer(x)


class Swish(torch.autograd.Function):
    """As EfficientNet-PyTorch saves memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.sigmoid() * (1 + x * (1 - x.sigmoid()))


class Convolved(nn.Module):
    """For images 1 × 8 × 8: one convolution, run by `through`, and two linear layers."""

    def __init__(self, through: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(1, 8, 3), nn.Linear(288, 32), nn.Linear(32, 10)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.through(self.conv, x)).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


def frozen_body(cut: Callable[[nn.Module, Tensor], Tensor] = torch.no_grad()(lambda layer, x: layer(x))) -> nn.Module:
    """A body that is not trained, as tutorials on transfer learning freeze it."""
    model = Convolved(cut)
    model.conv.requires_grad_(False)
    return model


class Autocast(Convolved):
    """Trains in mixed precision."""

    def __init__(self) -> None:
        super().__init__(lambda layer, x: layer(x))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x)


def made_of_others(normalized: Callable[[nn.Module], nn.Module], place: int) -> nn.Module:
    """A plain network for images 1 × 8 × 8 with one layer whose weight is made of other parameters."""
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*(normalized(layer) if i == place else layer for i, layer in enumerate(layers)))


class Doubled(nn.Module):
    """What a parametrization makes of a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def parametrized(name: str) -> Callable[[nn.Module], nn.Module]:
    return lambda layer: nn.utils.parametrize.register_parametrization(layer, name, Doubled())


class Pooled(nn.Module):
    """For images 1 × 8 × 8, of which it sees what `seen` makes: one or several for each, in one batch."""

    def __init__(self, seen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 64, 3, 2, 1)
        self.conv3, self.fc, self.seen = nn.Conv2d(64, 64, 3, 1, 1), nn.Linear(64, 10), seen

    def forward(self, x: Tensor) -> Tensor:
        maps = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(self.seen(x)))))))
        return self.fc(maps.mean((2, 3)).view(-1, len(x), 64).mean(0))


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


class Block(nn.Module):
    """Of a transformer, as timm writes it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """For images 1 × 8 × 8; what it returns has `logits`, as in Hugging Face's, where `named`."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.patches, self.named = nn.Conv2d(1, 16, 4, 4), named
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(0.02 * torch.randn(1, 5, 16))
        self.blocks, self.norm, self.head = nn.Sequential(Block(16), Block(16)), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor | SimpleNamespace:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = self.head(self.norm(self.blocks(x))[:, 0])
        return SimpleNamespace(logits=x) if self.named else x


class Adapted(nn.Module):
    """A linear layer with a trained adapter of low rank beside it, with the names that PEFT gives."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def with_adapters() -> nn.Module:
    """A frozen vision transformer for images 1 × 8 × 8 whose blocks have adapters; its head is trained."""
    model = VisionTransformer().requires_grad_(False)
    for block in model.blocks:
        block.mlp[0] = Adapted(block.mlp[0])
    model.head.requires_grad_()
    return model


class Heads(nn.Module):
    """For images 1 × 8 × 8: two heads, of which the loss is of the first. returned: what `forward` makes of both."""

    def __init__(self, returned: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.heads, self.returned = nn.ModuleDict({"class": nn.Linear(32, 10), "age": nn.Linear(32, 3)}), returned

    def forward(self, x: Tensor) -> object:
        h = self.body(x)
        return self.returned(self.heads["class"](h), self.heads["age"](h))


def mnist_example() -> nn.Module:
    """That of PyTorch's MNIST example, small, for images 1 × 8 × 8."""
    convolutions = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)
    head = nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10), nn.LogSoftmax(1)
    return nn.Sequential(*convolutions, nn.Flatten(), *head)


def mobile() -> nn.Module:
    """An inverted bottleneck of MobileNetV2, for images 1 × 8 × 8."""

    def normalized(given: int, kernel: int, stride: int, groups: int, made: int) -> nn.Module:
        layer = nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(made), nn.ReLU6())

    project = nn.Sequential(nn.Conv2d(24, 12, 1, bias=False), nn.BatchNorm2d(12))
    blocks = normalized(1, 3, 1, 1, 8), normalized(8, 1, 1, 1, 24), normalized(24, 3, 2, 24, 24), project
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10))


def nested() -> nn.Module:
    """A body and a head as fastai cuts them, for images 1 × 8 × 8, normalization and dropout around every layer."""
    body = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    first = nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 16, bias=False), nn.ReLU(inplace=True)
    last = nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10, bias=False)
    return nn.Sequential(body, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *first, *last))
