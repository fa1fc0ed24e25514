"""Networks as people write them: with `view`, in channels-last memory, and with operations in place."""

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
