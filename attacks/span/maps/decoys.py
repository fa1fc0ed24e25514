"""Decoys of an inversion: images of nobody, by which it is measured how much of an image its maps give back.

An inversion ends somewhere for any network and any maps, and neither its residual nor the agreement of several starts
says whether that is near the image: a random network has maps like those of the image at quite other images, and where
maps say little the prior decides the same way from every start. So images that the attacker knows go the same way.
"""

import torch
from torch import Tensor

from attacks.span.thresholds import MAP_INVERSION


def dead_leaves(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Images (count, C, H, W) with a mean of 0 and a standard deviation of 1 each, on the CPU: discs that hide one
    another, of random colours and of radii r between a pixel and half of the image with density 1 / r². Like natural
    images they have edges, flat parts and structure of every size (the dead leaves model: Lee, Mumford and Huang
    2001)."""
    channels, height, width = shape
    largest = max(height, width) / 2
    down, across = torch.arange(height)[:, None], torch.arange(width)
    images = torch.zeros(count, *shape)
    for image in images:
        for _ in range(MAP_INVERSION.leaves):
            place = torch.rand(2, generator=generator)
            radius = largest / (1 + (largest - 1) * torch.rand(1, generator=generator))
            grey = torch.rand(1, generator=generator)
            color = (grey + MAP_INVERSION.leaf_color * torch.randn(channels, generator=generator)).clamp(0, 1)
            inside = (down - height * place[0]) ** 2 + (across - width * place[1]) ** 2 < radius**2
            image[:, inside] = color[:, None]
    images -= images.mean((1, 2, 3), keepdim=True)
    return images / images.std((1, 2, 3), keepdim=True).clamp_min(1e-6)
