"""Whether an eye would know an image: the best likeness over a few changes that an eye overlooks.

A candidate may be mirrored, shifted by up to 2 pixels (1 where the shorter side is below 16), brighter or darker, of
another contrast, a negative included. Likeness is the largest |correlation| over those, on images whose fine detail is
smoothed away. It is declared, no test of an eye, and its threshold comes from the images themselves.
"""

from copy import copy
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 32  # pixels of the shorter side that are compared; larger images are averaged down to that
SMALLEST = 5  # pixels of it, below which there is nothing to shift
MARGIN, SMALL_MARGIN, LARGE_IMAGE = 2, 1, 16  # pixels of the shift, and the side from which it is the larger
FALSE_RATE = 0.01  # share of private images that as many public ones as were returned may pass for
MOST_PUBLIC = 1000  # images that the threshold is taken from
FEW = 100_000  # pairs of images, up to which all are compared in full
LEADING = 32  # directions that bound the likeness of a pair
ROWS, MOST_NEAR = 256, 0.04  # images at a time then, and the share of pairs up to which these are compared one by one
ROUNDING = 1e-3  # of the bound


class Views:
    """Smoothed candidates (M, C, H, W) in all their shifts and mirrored, as unit vectors; not only in [0, 1]."""

    def __init__(self, small: Tensor):
        self.count, places = len(small), range(2 * _margin(small) + 1)
        self.variants = [view for side in (small, small.flip(3)) for view in _units(side, places)]

    def at(self, places: np.ndarray | slice) -> "Views":
        """Return those of these candidates, in this order."""
        some = copy(self)
        some.variants = [view[places] for view in self.variants]
        some.count = len(some.variants[0])
        return some

    def likeness(self, own: Tensor, least: float = 0.0) -> np.ndarray:
        """Return the likeness of images, as `unmoved` has them, (Q, d), to every candidate, 0 to 1, (Q, M). least: of
        many pairs, 0 may stand for less."""
        if not self.count:
            return np.zeros((len(own), 0), np.float32)
        if least > 0 and len(own) * self.count > FEW:
            return self._at_least(own, least).numpy()
        best = torch.zeros(len(own), self.count)
        for view in self.variants:
            torch.maximum(best, (own @ view.T).abs_(), out=best)
        return best.numpy()

    def _at_least(self, own: Tensor, least: float) -> Tensor:
        """Return how like unit vectors (Q, d) are to every candidate where it is `least` or more, elsewhere 0 or right.
        Beyond a few axes two vectors have no larger product than the lengths that they have there, which most pairs
        need to be no further compared."""
        axes = torch.linalg.eigh(own.T @ own).eigenvectors[:, -LEADING:]
        bounds = [_along(view, axes) for view in self.variants]
        found = torch.zeros(len(own), self.count)
        for rows, best in zip(own.split(ROWS), found.split(ROWS), strict=True):
            part, beyond = _along(rows, axes)
            for view, (along, rest) in zip(self.variants, bounds, strict=True):
                bound = (part @ along.T).abs_().addr_(beyond, rest).numpy()  # whose zeros torch is slow to pass over
                near = divmod(np.flatnonzero(bound >= least - ROUNDING), self.count)
                if len(near[0]) <= MOST_NEAR * best.numel():
                    best[near] = torch.maximum(best[near], (rows[near[0]] * view[near[1]]).sum(1).abs())
                else:
                    torch.maximum(best, (rows @ view.T).abs_(), out=best)
        return found


def _along(vectors: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts (N, k) of unit vectors (N, d) along axes (d, k), and the lengths (N,) of what is left."""
    along = vectors @ axes
    return along, (1 - along.square().sum(1)).clamp_min(0).sqrt()


def threshold(likeness: np.ndarray, returned: int) -> float:
    """Return the likeness above which `returned` public images pass for at most 1 in 100 private ones.

    likeness: of pairs of a private and a public image, NaN for copies. Of n pairs a fresh one is above the (k + 1)-th
    largest with probability (k + 1) / (n + 1). NaN where the pairs are too few to tell.
    """
    pairs = np.sort(likeness[~np.isnan(likeness)])[::-1]
    above = int(FALSE_RATE * (len(pairs) + 1) / max(returned, 1) + 1e-9) - 1
    return float(pairs[above]) if above >= 0 else float("nan")


def comparable(images: Tensor) -> bool:
    """Return whether images (N, C, H, W) are large enough to be shifted."""
    return min(images.shape[2:]) >= SMALLEST


def smoothed(images: Tensor) -> Tensor:
    """Shrink images to at most `LARGEST` pixels on the shorter side, each the mean of its neighbourhood of 3 x 3."""
    images, side = images.float(), min(images.shape[2:])
    if side > LARGEST:
        size = [round(length * LARGEST / side) for length in images.shape[2:]]
        images = functional.interpolate(images, size=size, mode="area")
    return functional.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)


def _margin(small: Tensor) -> int:
    return MARGIN if min(small.shape[2:]) >= LARGE_IMAGE else SMALL_MARGIN


def unmoved(small: Tensor) -> Tensor:
    """Return smoothed images (N, C, H, W) as unit vectors (N, d) that `Views.likeness` compares."""
    return _units(small, range(_margin(small), _margin(small) + 1))[0]


def _units(small: Tensor, places: range) -> list[Tensor]:
    """Return the windows that begin in these rows and columns, every channel without its mean, as unit vectors (N, d);
    zeros stay."""
    margin, found = _margin(small), []
    step = 2 if margin == MARGIN else 1
    height, width = ((length - 2 * margin + step - 1) // step for length in small.shape[2:])
    for down, right in product(range(step), repeat=2):
        part = small[:, :, down::step, right::step].contiguous()  # a window without gaps is copied thrice as fast
        for top, left in product(places, repeat=2):
            if (top % step, left % step) == (down, right):
                window = part[:, :, top // step :, left // step :][:, :, :height, :width].flatten(2)
                window = window.sub_(window.mean(2, keepdim=True)).flatten(1)
                found.append(window.div_(window.norm(dim=1, keepdim=True).clamp_min(1e-6)))
    return found
