"""What the tests of attacks share."""

import torch
from sklearn.datasets import load_digits


def digits(count, mean=0.3):
    """(count, 1, 8, 8), pixels in [0, 1] less the mean. Two different digits are 2.5 to 4 apart in L2."""
    return torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)[:, None] - mean


def nearest(images, found):
    """L2 of every image to the nearest reconstruction, (N,)."""
    return torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values
