"""The penalties beside a reconstruction loss, and how smooth the stand-in for ReLU is: shared by `ntk` and `kkt`."""

import torch
import torch.nn.functional as F
from torch import Tensor


def inverse_temperature(iteration: int, iterations: int) -> float:
    """β of the softplus that stands for ReLU: min(10 + 10^(4i/T), 200), 11 at the start (app. H.3, rescaled to T)."""
    return min(10.0 + 10.0 ** (4.0 * iteration / iterations), 200.0)


def outside_range(images: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """M · mean(relu(x − max)² + relu(min − x)²), the penalty of app. H.3 without its factor 0.1."""
    return len(images) * (torch.relu(images - high) ** 2 + torch.relu(low - images) ** 2).mean()


def high_frequencies(images: Tensor) -> Tensor:
    """M · mean((x − b∗x)²), b the binomial blur [1 2 1]ᵀ[1 2 1] / 16 of every channel, edges repeated. (M, C, H, W).

    At frequencies (u, v), in radians per pixel, the weight is (1 − cos²(u/2) cos²(v/2))²: none at 0, 1 at the highest.
    """
    line = images.new_tensor([0.25, 0.5, 0.25])
    channels = images.shape[1]
    kernel = (line[:, None] * line).expand(channels, 1, 3, 3)
    blurred = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)
    return len(images) * ((images - blurred) ** 2).mean()
