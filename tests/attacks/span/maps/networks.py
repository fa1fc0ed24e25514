"""Small convolutional networks, and clients that train them."""

import torch
import torch.nn.functional as F
from torch import nn

SHAPE = (1, 8, 8)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + x)


def plain(norm=nn.BatchNorm2d):
    """8 channels at 8 x 8, then 64 at 4 x 4, twice: the second convolution's patches of two images have rank 32."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU()]
    body += [nn.Conv2d(8, 64, 3, stride=2, padding=1, bias=False), norm(64), nn.ReLU()]
    body += [nn.Conv2d(64, 64, 3, padding=1, bias=False), norm(64), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def calibrated(model, images):
    """With running statistics of some images."""
    model.train()
    with torch.no_grad():
        for _ in range(60):
            model(images)
    return model.eval()


def trained(model, images, labels, steps=1, mode="eval", rate=0.01, **sgd):
    """(state sent, state returned), full batch; the network keeps the state sent. sgd: further options of SGD."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    model.train(mode == "train")
    optimizer = torch.optim.SGD(model.parameters(), rate, **sgd)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(initial)
    model.eval()
    return initial, final
