"""Which candidate is which image: every candidate against every image of the pool, as they are and up to what an
attacker cannot know or does not care about (offset and gain, the clients' augmentations).

A *hit* is a pair of an image and a candidate with at least 20 dB that is identified: the candidate is nearer to this
image than to any other of the pool. Rows are images, columns candidates.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy  # its parts are imported where they are first used
import torch
from torch import Tensor

from attacks.scoring.images import RECOVERED_PSNR

Transformation = Callable[[Tensor], Tensor]
"""What a client may have done to its images before it trained on them: (N, C, H, W) -> (N, C, H, W)."""

LARGEST_MSE = 10 ** (-RECOVERED_PSNR / 10)


class Identification:
    """Images (Q, C, H, W) of a pool and candidates (M, C, H, W), and who is an exact copy of whom."""

    def __init__(self, images: Tensor, candidates: Tensor):
        self.images, self.candidates = images, candidates
        everyone = torch.cat([images, candidates]).flatten(1)
        number = torch.unique(everyone, dim=0, return_inverse=True)[1].numpy()  # equal images share one
        self.numbers, self.guesses = number[: len(images)], number[len(images) :]
        self.l2 = _l2(self.images, self.candidates)

    def hits(self) -> np.ndarray:
        """Pixel by pixel, (Q, M)."""
        return self._near(self.l2) & self._identified(self.l2)

    def recognized(self, likeness: np.ndarray, least: float) -> np.ndarray:
        """By an eye (`attacks.scoring.recognition`): the pairs that are more alike than `least`, and identified by
        their likeness, (Q, M)."""
        return (likeness > least) & self._identified(-likeness)

    def affine_hits(self, inputs: Tensor) -> np.ndarray:
        """After the offset and the positive gain per channel that bring a candidate nearest to the image, (Q, M).

        inputs: (M, C, H, W), the candidates before anything clamped them. A least-squares fit. Images differ in
        contrast and a flat one is near to every fit, so a candidate belongs to the image of whose variance the fit
        leaves the smallest share.
        """
        images, candidates = (values.double().flatten(2) for values in (self.images, inputs))
        images, candidates = (values - values.mean(2, keepdim=True) for values in (images, candidates))
        size = candidates.square().sum(2).clamp_min(torch.finfo(torch.float64).tiny)
        along = torch.einsum("qcd,mcd->qmc", images, candidates).clamp_min(0)  # a negative fits with a gain of 0
        variance = images.square().sum((1, 2))[:, None]
        left = (variance - (along.square() / size).sum(2)).clamp_min(0)
        share = torch.where(variance > 0, left / variance, 1.0)
        return self._near(left.sqrt().numpy()) & self._identified(share.numpy())

    def hits_up_to(self, transformations: Sequence[Transformation]) -> np.ndarray:
        """Modulo transformations of the images: each image is as far as the nearest of its views, (Q, M)."""
        l2 = self.l2
        for transformation in transformations:
            l2 = np.minimum(l2, _l2(transformation(self.images), self.candidates))
        return self._near(l2) & self._identified(l2)

    def _near(self, l2: np.ndarray) -> np.ndarray:
        return l2**2 <= LARGEST_MSE * self.images[0].numel()

    def _identified(self, distance: np.ndarray) -> np.ndarray:
        """Whether a candidate is nearer to an image than to any other. Exact copies of the image are no others, nor are
        those of the candidate, as in `attacks.scoring.images`."""
        others = np.where(self.numbers[:, None] == self.guesses, np.inf, distance)
        nearest = self.numbers[others.argmin(0)]
        own = self.numbers[:, None] == nearest
        beyond = np.where(own, np.inf, others).min(0)
        return distance < np.where(own, beyond, others.min(0))


def count_images(hits: np.ndarray, copies: np.ndarray) -> int:
    """How many images have a candidate of their own among their hits, (D, M), an image as often as it occurs, (D,): the
    matching of both that has most."""
    rows = hits.any(1)
    hits, copies = hits[rows][:, hits.any(0)], copies[rows]  # mostly few: matching everything would take seconds
    weights = hits * copies[:, None]
    return int(weights[scipy.optimize.linear_sum_assignment(weights, maximize=True)].sum())


def _l2(a: Tensor, b: Tensor) -> np.ndarray:
    a, b = a.flatten(1).double(), b.flatten(1).double()
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist").numpy()
