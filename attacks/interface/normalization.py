"""How pixels become a network's input: channel by channel, a mean is subtracted and a deviation divided by."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """(pixels − mean) / std, channel by channel, of pixels in [0, 1].

    mean: one value per channel; empty where nothing is subtracted. std: likewise; empty where nothing is divided.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...] = ()

    def inputs(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) in [0, 1] -> the same in the network's input space."""
        return (pixels - _by_channel(self.mean or (0.0,), pixels)) / _by_channel(self.std or (1.0,), pixels)

    def pixels(self, inputs: Tensor) -> Tensor:
        """The inverse, (N, C, H, W); not clamped."""
        return inputs * _by_channel(self.std or (1.0,), inputs) + _by_channel(self.mean or (0.0,), inputs)


def _by_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """(1, C, 1, 1), or (1, 1, 1, 1) of one value for all, of the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)
