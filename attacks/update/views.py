"""Views of one image, as clients that augment their data train on, recognized by what the attacker sees."""

from itertools import product

import numpy as np
import torch
from torch import Tensor

SHIFT = 2  # pixels between two views: twice what crops and shifts of small images usually are


def group_views(images: Tensor, count: int) -> Tensor:
    """Which of `count` originals each of the images (M, C, H, W) shows: (M,) from 0, in order of first appearance.

    Two images are as far apart as their best overlap under shifts of up to 2 pixels, mirrored or not; average linkage
    (Sokal and Michener 1958) joins the nearest until so many groups are left.
    """
    if len(images) <= 1:
        return torch.zeros(len(images), dtype=torch.long)
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, and for augmenting clients only
    from scipy.spatial.distance import squareform

    distance = _up_to_views(images.double().cpu())
    tree = linkage(squareform(distance, checks=False), "average")
    found = fcluster(tree, count, "maxclust")
    first = dict.fromkeys(found.tolist())
    order = {group: i for i, group in enumerate(first)}
    return torch.tensor([order[group] for group in found.tolist()])


def _up_to_views(images: Tensor) -> np.ndarray:
    """(M, M), symmetric, zero on the diagonal: the smallest L2 distance of two images, one of them shifted, wrapped
    around, and mirrored or not."""
    steps = range(-SHIFT, SHIFT + 1)
    flat, nearest = images.flatten(1), torch.full((len(images), len(images)), float("inf"), dtype=torch.float64)
    for mirrored, down, right in product((images, images.flip(3)), steps, steps):
        nearest = torch.minimum(nearest, torch.cdist(flat, mirrored.roll((down, right), (2, 3)).flatten(1)))
    nearest = torch.minimum(nearest, nearest.T)
    return nearest.fill_diagonal_(0).numpy()
