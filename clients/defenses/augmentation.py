"""Data augmentation: every step sees the images shifted, flipped and noised anew, so no image is fitted as it is."""

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.options import check_values
from clients.defenses.base import Defense, Transformation, register
from clients.training import Batch


@register
@dataclass(frozen=True)
class Augmentation(Defense):
    """shift: pixels, at most, in each direction, wrapped around. flip: mirror half of the images. noise: standard
    deviation of Gaussian noise on pixels in [0, 1]."""

    name: ClassVar[str] = "augmentation"

    shift: int = 1
    flip: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_values(self, not_negative=("shift", "noise"))

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        count = len(batch.inputs)
        shifts = torch.randint(-self.shift, self.shift + 1, (count, 2), generator=generator).tolist()
        flips = (torch.rand(count, generator=generator) < 0.5 * self.flip).tolist()
        images = [
            image.roll(shift, (1, 2)).flip(2) if flip else image.roll(shift, (1, 2))
            for image, shift, flip in zip(batch.inputs, shifts, flips, strict=True)
        ]
        inputs = torch.stack(images) if images else batch.inputs
        if self.noise:
            inputs = inputs + self.noise * torch.randn(inputs.shape, generator=generator).to(inputs.device)
        return replace(batch, inputs=inputs)

    def invariances(self) -> tuple[Transformation, ...]:
        """Every shift, and every shift mirrored."""
        steps = range(-self.shift, self.shift + 1)
        return tuple(
            _View(down, right, flip) for flip, down, right in product([False, True][: 1 + self.flip], steps, steps)
        )


@dataclass(frozen=True)
class _View:
    """Images (N, C, H, W) shifted by so many pixels, wrapped around, then mirrored or not."""

    down: int
    right: int
    flip: bool

    def __call__(self, images: Tensor) -> Tensor:
        shifted = images.roll((self.down, self.right), (2, 3))
        return shifted.flip(3) if self.flip else shifted
