"""The scale of a inputs, for weights that were trained on standardized pixels: clients subtract a mean only."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.errors import InputError
from clients.config import Positive

InputScaleOption = Positive | list[Positive]
INPUT_SCALE = Field(
    1.0,
    description="what images are divided by inside the network, one number or one for each channel: the pixels' "
    "deviation that a checkpoint was trained with; their mean is data.mean",
)


class InputScale(nn.Module):
    """x / scale, channel by channel. The scale is no part of the state dict, so that published weights load."""

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
