"""The scores of a reconstruction image by image: its match, distance, PSNR, SSIM, and whether it is identified.

This is the one place that sees private images. It takes finished reconstructions: no attack calls it.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts, and scikit-image's, are imported where they are first used
import skimage
import torch
from torch import Tensor

from attacks.interface.errors import InputError

RECOVERED_PSNR = 20.0  # dB, peak 1
LARGE_IMAGE = 16  # pixels of the shorter side from which SSIM has its usual window
WINDOW, SMALL_WINDOW = 7, 3  # pixels of SSIM's uniform window


@dataclass(frozen=True)
class Pool:
    """The images among which a reconstruction has to single out its own.

    public: (P, C, H, W), images in [0, 1] that belong to nobody's private set. private: (Q, C, H, W), all private
    images of the round, those of other clients too. public_labels, private_labels: (P,) and (Q,), their classes, None
    where these are not known.
    """

    public: Tensor
    private: Tensor
    public_labels: Tensor | None = None
    private_labels: Tensor | None = None


@dataclass(frozen=True)
class Distinct:
    """Which of N images are exactly equal, pixel for pixel. first: (D,) the first of each. copies: (D,) how often it
    occurs. of: (N,) which of the D an image is."""

    first: np.ndarray
    copies: np.ndarray
    of: np.ndarray

    @classmethod
    def among(cls, images: Tensor) -> "Distinct":
        _, first, of, copies = np.unique(
            images.flatten(1).numpy(), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        order = first.argsort()
        return cls(first[order], copies[order], order.argsort()[of.reshape(-1)])


@dataclass(frozen=True)
class ImageScores:
    """One entry per private image, (N,) each. match: index of the reconstruction, -1 where there was none left."""

    match: np.ndarray
    l2: np.ndarray
    psnr: np.ndarray
    ssim: np.ndarray
    identified: np.ndarray
    hungarian_psnr: np.ndarray

    @property
    def recovered(self) -> np.ndarray:
        return self.identified & (self.psnr >= RECOVERED_PSNR)

    def at(self, places: np.ndarray) -> "ImageScores":
        """Those of these images, in this order."""
        return ImageScores(**{name: values[places] for name, values in vars(self).items()})


def score_images(private: Tensor, candidates: Tensor, pool: Pool) -> ImageScores:
    """Match candidates to private images greedily by L2 and score every pair.

    Equal private images are matched once, and share what they are matched with. An image left without a match is scored
    against the mean public image and counts as not identified.
    """
    distinct = Distinct.among(private)
    private = private[distinct.first]
    mean_image = pool.public.mean(0, keepdim=True)
    distance = distances(private, candidates).numpy()
    match = greedy_match(distance)
    guesses = torch.cat([candidates, mean_image])[match]  # -1 is the mean image
    l2 = (guesses - private).flatten(1).double().norm(dim=1).numpy()
    hungarian = torch.cat([candidates, mean_image])[hungarian_match(distance**2 * distinct.copies[:, None])]
    scores = ImageScores(
        match=match,
        l2=l2,
        psnr=psnr(private, guesses),
        ssim=np.array([ssim(a, b) for a, b in zip(private, guesses, strict=True)]),
        identified=(match >= 0) & _nearest_is_own(private, guesses, l2, pool),
        hungarian_psnr=psnr(private, hungarian),
    )
    return scores.at(distinct.of)


def greedy_match(distance: np.ndarray) -> np.ndarray:
    """Loo et al.'s reconstruction curve: take the closest pair, remove both, repeat.

    distance: (N, M). Returns (N,) column of each row, or -1 for rows left over where M < N. Of equal distances that of
    the first row, then of the first column, counts as closer.
    """
    match = np.full(len(distance), -1)
    rows, columns = np.arange(len(distance)), np.arange(distance.shape[1])
    while len(rows) and len(columns):  # every pair that is the closest of both is taken at once: none is in its way
        left = distance[np.ix_(rows, columns)]
        best = left.argmin(1)
        mutual = left.argmin(0)[best] == np.arange(len(rows))
        match[rows[mutual]] = columns[best[mutual]]
        rows, columns = rows[~mutual], np.delete(columns, best[mutual])
    return match


def hungarian_match(cost: np.ndarray) -> np.ndarray:
    """The assignment of least total cost, (N, M) -> (N,) column of each row, or -1 for rows left over."""
    match = np.full(len(cost), -1)
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    match[rows] = columns
    return match


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of flattened images, (N, M), in float64."""
    if len(b) == 0:
        return torch.zeros((len(a), 0), dtype=torch.float64)
    return torch.cdist(a.flatten(1).double(), b.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")


def matched_l2(private: Tensor, candidates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """((N,) distances of the greedy matching, (N,) which candidate). Raises InputError where there are fewer than N."""
    if len(candidates) < len(private):
        raise InputError(f"{len(candidates)} candidates cannot be matched to {len(private)} images")
    table = distances(private, candidates).numpy()
    match = greedy_match(table)
    return table[np.arange(len(table)), match], match


def psnr(private: Tensor, guesses: Tensor) -> np.ndarray:
    """Peak signal-to-noise ratio in dB with peak 1, (N,); an exact copy counts as 100 dB."""
    mse = ((private - guesses).double() ** 2).flatten(1).mean(1).clamp_min(1e-10)
    return (-10 * torch.log10(mse)).numpy()


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity of two (C, H, W) images in [0, 1]; uniform window of 7 pixels, 3 for images below 16, NaN
    for those that are smaller than that."""
    side = min(a.shape[1:])
    if side < SMALL_WINDOW:
        return float("nan")
    window = WINDOW if side >= LARGE_IMAGE else SMALL_WINDOW
    return float(
        skimage.metrics.structural_similarity(a.numpy(), b.numpy(), win_size=window, data_range=1.0, channel_axis=0)
    )


def _nearest_is_own(private: Tensor, guesses: Tensor, l2: np.ndarray, pool: Pool) -> np.ndarray:
    """Whether each guess is nearer to its private image than to any other of the pool.

    Exact copies of the private image are no others, nor are those of the guess: an attacker who returns public images
    is asked which of the rest they are nearest to.
    """
    everyone = torch.cat([pool.public, pool.private])
    identified = np.zeros(len(private), dtype=bool)
    nearer = distances(guesses, everyone).numpy() <= l2[:, None]
    for i, (image, guess) in enumerate(zip(private, guesses, strict=True)):
        near = everyone[torch.from_numpy(nearer[i])]
        identified[i] = not ((near != image).flatten(1).any(1) & (near != guess).flatten(1).any(1)).any()
    return identified
