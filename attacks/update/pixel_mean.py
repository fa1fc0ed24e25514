"""The mean that was subtracted from the pixels, read off an update or off images."""

import torch
from torch import Tensor

from attacks.interface.normalization import Normalization
from attacks.interface.observation import Observation
from attacks.update.first_layer import first_layer_update

MAX_MEAN = 0.99  # a larger one is no mean of images in [0, 1]
CONSTANT_MISFIT = 1e-2  # of a column's norm: what may be left of a pixel that is black in every private image
GREY_LEVEL = 1 / 255  # half of it is what rounding may move a pixel out of its range
BACKGROUND_HALF_WIDTH = 0.03  # in pixel values, on either side of the most frequent one
BACKGROUND_SHARE, DARKER_SHARE = 0.3, 0.1  # of all pixels: at least in a black background, at most darker than it


def infer_pixel_mean(observation: Observation, std: tuple[float, ...] | None = None) -> tuple[float, ...] | None:
    """The per-channel mean that was subtracted, from pixels that are black in every private image.

    Such a pixel is −mean / std throughout, so its column of ΔW is −mean / std·Δb; a column of zeros beside a Δb means
    that nothing was subtracted. Returns None where no pixel is constant, and where the answer is no mean that images in
    [0, 1] have: Adam's steps, equal in size everywhere, look like a mean of 1. std: what was divided by, 1 where it is
    not told.
    """
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    if bias is None or not bias.any():
        return None
    means: list[float] = []
    stds = std or (1.0,) * observation.input_shape[0]
    for channel, scale in zip(weight.reshape(len(weight), len(stds), -1).unbind(1), stds, strict=True):
        slope = (channel.T @ bias) / (bias @ bias)
        miss = (channel - bias[:, None] * slope).norm(dim=0) / channel.norm(dim=0).clamp_min(1e-30)
        constant = (miss < CONSTANT_MISFIT) & (slope < 0)
        black = ~channel.any(0)
        if not (constant | black).any():
            return None
        mean = scale * float(-slope[constant].median()) if constant.sum() > black.sum() else 0.0
        if mean > MAX_MEAN:
            return None
        means.append(mean)
    return tuple(means)


def infer_background(images: Tensor, std: tuple[float, ...] | None = None) -> tuple[float, ...] | None:
    """The mean that was subtracted, from images (M, C, H, W) whose most frequent value is their black background.

    Hardly any pixel may be darker than that value, and many have to be near it, in every channel; else None. std: what
    was divided by, 1 where it is not told.
    """
    means = []
    scale = torch.tensor(std or (1.0,) * images.shape[1], dtype=images.dtype).view(-1, 1)
    for channel in images.detach().cpu().transpose(0, 1).flatten(1) * scale:
        values, width = channel.sort().values, BACKGROUND_HALF_WIDTH
        near = torch.searchsorted(values, values + width) - torch.searchsorted(values, values - width)
        mode = float(values[int(near.argmax())])
        darker = (values < mode - width).float().mean()
        if int(near.max()) < BACKGROUND_SHARE * len(values) or darker > DARKER_SHARE:
            return None
        means.append(-float(values[(values - mode).abs() <= width].median()))
    return tuple(means)


def are_raw_pixels(images: Tensor, std: tuple[float, ...] | None = None) -> bool:
    """Whether images (M, C, H, W) that a network was fed lie in [0, 1], as pixels do that nothing was subtracted from.
    std: what was divided by, 1 where it is not told."""
    pixels = Normalization((), std or ()).pixels(images)
    return bool(((pixels - 0.5).abs() <= 0.5 + GREY_LEVEL / 2).all()) and len(images) > 0
